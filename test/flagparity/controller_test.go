// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package flagparity

import (
	"testing"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/berth-k8s/berth/internal/controller"
)

// values lists the tested values of each flag of the two controllers.
var values = map[string][]string{
	"controllers": {
		"*", "*,-node-lifecycle-controller", "node-lifecycle-controller", "*,-nodelifecycle", "nodelifecycle", "*,-taint-eviction-controller",
		"taint-eviction-controller", "node-lifecycle", "taint-eviction", "",
	},
	"node-monitor-period":             {"1s", "0s", "-5s", "5", "1d"},
	"node-monitor-grace-period":       {"20s", "0s", "-5s", "forever"},
	"node-startup-grace-period":       {"2m", "0s", "-5s", ""},
	"node-eviction-rate":              {"0", "0.5", "-1", "1e3", "fast", "NaN", "Inf"},
	"secondary-node-eviction-rate":    {"0", "0.5", "-1", "", "NaN"},
	"unhealthy-zone-threshold":        {"0", "0.7", "1", "1.5", "-1", "half", "55%", "NaN"},
	"large-cluster-size-threshold":    {"0", "10", "-1", "1.5", "many"},
	"leader-elect":                    {"true", "false", "maybe"},
	"leader-elect-resource-lock":      {"leases", "endpoints", "configmaps", ""},
	"leader-elect-lease-duration":     {"30s", "soon"},
	"leader-elect-renew-deadline":     {"12s", "soon"},
	"leader-elect-retry-period":       {"3s", "soon"},
	"leader-elect-resource-name":      {"other"},
	"leader-elect-resource-namespace": {"other"},
}

// stricter lists flags that kube-controller-manager accepts and Berth rejects, with the reasons;
// see docs/concepts/node-health.md.
var stricter = map[string]string{
	"--node-monitor-period=0s":           "a loop without a pause",
	"--node-monitor-period=-5s":          "a loop without a pause",
	"--node-monitor-grace-period=0s":     "every node would be silent",
	"--node-monitor-grace-period=-5s":    "every node would be silent",
	"--node-startup-grace-period=0s":     "every new node would be silent",
	"--node-startup-grace-period=-5s":    "every new node would be silent",
	"--node-eviction-rate=NaN":           "not a number",
	"--secondary-node-eviction-rate=NaN": "not a number",
	"--unhealthy-zone-threshold=NaN":     "not a number",
	"--controllers=":                     "nothing would run",
}

// TestEveryFlagOfNodeHealthIsTaken verifies that Berth has kube-controller-manager's flags for the
// replaced controllers, with the same defaults, and accepts the same values except those in
// stricter.
func TestEveryFlagOfNodeHealthIsTaken(t *testing.T) {
	_, all := theirs(t)
	defaults := pflag.NewFlagSet("berth", pflag.ContinueOnError)
	ours := controller.DefaultOptions()
	ours.AddFlags(defaults)
	flags := pflag.NewFlagSet("kube-controller-manager", pflag.ContinueOnError)
	for _, set := range all.FlagSets {
		flags.AddFlagSet(set)
	}
	all.FlagSet(names.NodeLifecycleController).VisitAll(func(f *pflag.Flag) {
		if values[f.Name] == nil {
			t.Errorf("--%s is given no value here", f.Name)
		}
	})
	for name := range values {
		own, theirs := defaults.Lookup(name), flags.Lookup(name)
		switch {
		case theirs == nil:
			t.Errorf("kube-controller-manager has no --%s", name)
		case own == nil:
			t.Errorf("--%s is not taken", name)
		case own.DefValue != theirs.DefValue && name != "leader-elect-resource-name": // both may run in one cluster
			t.Errorf("--%s is %q by default, %q with kube-controller-manager", name, own.DefValue, theirs.DefValue)
		}
	}
	for name, list := range values {
		for _, value := range list {
			arg := "--" + name + "=" + value
			mine, upstream := takes(arg), takenByUpstream(t, arg)
			_, known := stricter[arg]
			if mine != upstream && !(known && upstream) || known && mine {
				t.Errorf("%s: taken %v, by kube-controller-manager %v", arg, mine, upstream)
			}
		}
	}
}

func takes(arg string) bool {
	flags := pflag.NewFlagSet("berth", pflag.ContinueOnError)
	o := controller.DefaultOptions()
	o.AddFlags(flags)
	return flags.Parse([]string{arg}) == nil && o.Validate() == nil
}

func theirs(t *testing.T) (*options.KubeControllerManagerOptions, cliflag.NamedFlagSets) {
	t.Helper()
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	return o, o.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
}

// takenByUpstream reports whether kube-controller-manager's own options accept the flag. It ignores
// validation errors that also occur without the flag.
func takenByUpstream(t *testing.T, arg string) bool {
	t.Helper()
	o, all := theirs(t)
	flags := pflag.NewFlagSet("kube-controller-manager", pflag.ContinueOnError)
	for _, set := range all.FlagSets {
		flags.AddFlagSet(set)
	}
	if flags.Parse([]string{arg}) != nil {
		return false
	}
	validate := func(o *options.KubeControllerManagerOptions) string {
		if err := o.Validate(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()); err != nil {
			return err.Error()
		}
		return ""
	}
	untouched, _ := theirs(t)
	return validate(o) == validate(untouched)
}
