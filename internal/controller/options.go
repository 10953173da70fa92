// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/eviction/evictioncontroller"
	"github.com/berth-k8s/berth/internal/controller/evictionrequest/requestcontroller"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/controller/nodehealth/nodecontroller"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/movecontroller"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/kube/lead"
)

// names are the controllers accepted by --controllers, in the order used in messages. Names shared
// with kube-controller-manager denote controllers with the same purpose.
var names = []string{evictioncontroller.Name, evictioncontroller.DeviceName, nodecontroller.Name, movecontroller.Name,
	movecontroller.GuardName, requestcontroller.Name}

// offByDefault are the controllers not included in '*': one moves healthy running pods, one adds
// replicas, and one serves an alpha API.
var offByDefault = []string{movecontroller.Name, movecontroller.GuardName, requestcontroller.Name}

// former are older names still accepted by kube-controller-manager.
var former = map[string]string{"nodelifecycle": nodecontroller.Name}

// Options are the command's flags. Flags shared with kube-controller-manager have its names,
// meanings and defaults.
type Options struct {
	Controllers []string             // in the order given; the first mention of a name counts
	Health      string               // address of the health and metrics endpoints; "" for none
	Profiling   bool                 // also serve profiles at Health
	Lead        lead.Options         // leader election of all controllers together
	Lock        string               // kind of the leader-election object
	Eviction    eviction.Options     // evictions for taints of nodes and of devices
	NodeHealth  nodehealth.Options   // kube-controller-manager's flags
	Rebalance   RebalanceOptions     // flags of the controller rebalance, which is off by default
	Guard       execute.GuardOptions // flags of the eviction guard, which is off by default
	Shadow      ShadowOptions        // flags of the shadow, which only compares
	Journal     records.Flags        // no journal is written if Dir is ""

	flags *pflag.FlagSet // flags as given, for /flagz
}

// DefaultOptions returns the defaults of the flags. Flags shared with kube-controller-manager have
// its defaults. The endpoints listen on loopback only, since they do not authenticate clients.
func DefaultOptions() Options {
	health := nodehealth.Defaults()
	// nodehealth.Defaults does not set ReadsLeases, because journals and simulations without an API
	// server use it as well.
	health.ReadsLeases = true
	return Options{
		Controllers: []string{"*"},
		Health:      "127.0.0.1:10357",
		Lead:        lead.Defaults("berth-controller"),
		Lock:        "leases",
		Eviction:    eviction.Options{InFlight: eviction.DefaultInFlight},
		NodeHealth:  health,
		Rebalance:   RebalanceOptions{Every: 5 * time.Minute},
		Guard:       execute.GuardOptions{Options: evictionguard.DefaultOptions()},
	}
}

// AddFlags adds the flags, with o as defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.flags = flags
	flags.StringSliceVar(&o.Controllers, "controllers", o.Controllers,
		"controllers to run: '*' all that are on by default, 'foo' that one, '-foo' not that one; of "+
			strings.Join(names, ", ")+"; off by default: "+strings.Join(offByDefault, ", "))
	flags.StringVar(&o.Health, "health-bind-address", o.Health,
		"address of /healthz, /livez, /readyz, /metrics, /statusz, /configz and /flagz, plain HTTP, unauthenticated; "+
			"port 0 picks a free one, empty disables it")
	flags.BoolVar(&o.Profiling, "profiling", o.Profiling, "also serve /debug/pprof/ at --health-bind-address, unauthenticated")

	s := &o.Shadow
	flags.BoolVar(&s.On, "shadow", s.On,
		"write nothing: compare what kube-controller-manager's controllers do with what Berth's would do; the result "+
			"is served at /shadow, see berth shadow report")
	flags.StringVar(&s.Report, "shadow-report", s.Report,
		"with --shadow: write the comparison to this file as JSON, every minute and at the end")
	flags.StringVar(&s.Scheduler, "shadow-scheduler-report", s.Scheduler,
		"with --shadow: report file of berth scheduler --shadow, served at /shadow together with this one")

	o.Journal.AddFlags(flags, "record the controllers' input and actions below this folder, for berth replay")

	o.Rebalance.addFlags(flags)
	o.Guard.AddControllerFlags(flags)
	o.Lead.AddFlags(flags)
	flags.StringVar(&o.Lock, "leader-elect-resource-lock", o.Lock, "kind of object that is the lock: leases")

	e := &o.Eviction
	flags.IntVar(&e.InFlight, "concurrent-evictions", e.InFlight, "maximum number of evictions in flight")
	flags.BoolVar(&e.Budgets, "evict-through-budgets", e.Budgets, "evict through the Eviction API, so that PodDisruptionBudgets count")
	flags.DurationVar(&e.BudgetsFor, "eviction-deadline", e.BudgetsFor,
		"with --evict-through-budgets, delete a pod that is overdue by this much regardless of its budget; 0: never")

	n := &o.NodeHealth
	flags.DurationVar(&n.MonitorPeriod, "node-monitor-period", n.MonitorPeriod, "how often nodes are checked")
	flags.DurationVar(&n.MonitorGracePeriod, "node-monitor-grace-period", n.MonitorGracePeriod,
		"how long a running node may be silent before it is marked unreachable")
	flags.DurationVar(&n.StartupGracePeriod, "node-startup-grace-period", n.StartupGracePeriod,
		"how long a node that has never reported may be silent")
	flags.Float64Var(&n.EvictionRate, "node-eviction-rate", n.EvictionRate,
		"nodes per second that get a NoExecute taint, in a zone that is healthy or entirely down")
	flags.Float64Var(&n.SecondaryEvictionRate, "secondary-node-eviction-rate", n.SecondaryEvictionRate,
		"--node-eviction-rate in an unhealthy zone; 0 in zones of at most --large-cluster-size-threshold nodes")
	flags.Float64Var(&n.UnhealthyZoneThreshold, "unhealthy-zone-threshold", n.UnhealthyZoneThreshold,
		"fraction of a zone's nodes that are not ready (at least 3) from which the zone is unhealthy; above 1 is never")
	flags.IntVar(&n.LargeClusterSize, "large-cluster-size-threshold", n.LargeClusterSize,
		"number of nodes above which pods are still evicted from an unhealthy zone, slowly")
	flags.BoolVar(&n.MarkPodsAtZoneRate, "mark-pods-at-zone-rate", n.MarkPodsAtZoneRate,
		"mark the pods of silent nodes NotReady at their zone's eviction rate, and not while every zone is down")
}

// Validate returns the first error in the options, naming the flag, its value and the allowed
// values.
func (o *Options) Validate() error {
	for _, name := range o.Controllers {
		bare := strings.TrimPrefix(name, "-")
		if name != "*" && !slices.Contains(names, bare) && former[bare] == "" {
			return fmt.Errorf("--controllers: %q: must be *, or of %s, with - before it to leave it out", name, strings.Join(names, ", "))
		}
	}
	// A process that does nothing would look healthy.
	if !slices.ContainsFunc(names, o.isEnabled) {
		return fmt.Errorf("--controllers: %v: selects none", o.Controllers)
	}
	if !o.Shadow.On && (o.Shadow.Report != "" || o.Shadow.Scheduler != "") {
		return fmt.Errorf("--shadow-report and --shadow-scheduler-report: require --shadow")
	}
	// The shadow has nothing to compare: kube-controller-manager v1.37 lacks this controller.
	for _, name := range []string{requestcontroller.Name, movecontroller.GuardName} {
		if o.Shadow.On && o.isEnabled(name) {
			return fmt.Errorf("--controllers: %s cannot be used with --shadow", name)
		}
	}
	if err := cmp.Or(o.Rebalance.validateOptions(o), o.Guard.Validate()); err != nil {
		return err
	}
	if o.Shadow.On && o.Journal.Dir != "" {
		return fmt.Errorf("--journal: cannot be used with --shadow")
	}
	if err := o.Journal.Validate(); err != nil {
		return err
	}
	if o.Lead.Elect && o.Lock != "leases" {
		return fmt.Errorf("--leader-elect-resource-lock: %q: must be leases", o.Lock)
	}
	if err := o.Lead.Validate(); err != nil {
		return err
	}
	h, e := &o.NodeHealth, &o.Eviction
	for _, f := range []struct {
		flag    string
		value   any
		invalid bool
		must    string
	}{
		{"node-monitor-period", h.MonitorPeriod, h.MonitorPeriod <= 0, "be greater than zero"},
		{"node-monitor-grace-period", h.MonitorGracePeriod, h.MonitorGracePeriod <= 0, "be greater than zero"},
		{"node-startup-grace-period", h.StartupGracePeriod, h.StartupGracePeriod <= 0, "be greater than zero"},
		// Any number is valid, like upstream: with a threshold of 0, every zone with three nodes
		// down is unhealthy, and with a threshold above 1, none is; a rate of 0 or less means
		// never.
		{"unhealthy-zone-threshold", h.UnhealthyZoneThreshold, math.IsNaN(h.UnhealthyZoneThreshold), "be a number"},
		{"node-eviction-rate", h.EvictionRate, math.IsNaN(h.EvictionRate), "be a number"},
		{"secondary-node-eviction-rate", h.SecondaryEvictionRate, math.IsNaN(h.SecondaryEvictionRate), "be a number"},
		{"concurrent-evictions", e.InFlight, e.InFlight < 1, "be at least 1"},
		{"eviction-deadline", e.BudgetsFor, e.BudgetsFor < 0, "not be negative"},
	} {
		if f.invalid {
			return fmt.Errorf("--%s: %v: must %s", f.flag, f.value, f.must)
		}
	}
	return nil
}

// isEnabled reports whether a controller is enabled, by the rules of kube-controller-manager: the
// name of the controller takes precedence over "*", which enables the controllers on by default. If
// a name is listed more than once, its first mention counts.
//
// For example, --controllers=*,-node-lifecycle-controller enables the defaults without
// node-lifecycle-controller, *,rebalance also enables rebalance, and rebalance enables only
// rebalance.
func (o *Options) isEnabled(name string) bool {
	for _, listed := range o.Controllers {
		bare, off := strings.CutPrefix(listed, "-")
		if bare == name || former[bare] == name {
			return !off
		}
	}
	return slices.Contains(o.Controllers, "*") && !slices.Contains(offByDefault, name)
}

// evictsPods reports whether pods are evicted for taints of nodes, of devices, or both.
func (o *Options) evictsPods() bool {
	return o.isEnabled(evictioncontroller.Name) || o.isEnabled(evictioncontroller.DeviceName)
}

// configzMap returns the content of /configz. Durations are strings, as in upstream's configuration
// types.
func (o *Options) configzMap() map[string]any {
	return map[string]any{"controller.berth.dev": map[string]any{
		"controllers": o.Controllers,
		"leaderElection": map[string]any{
			"leaderElect": o.Lead.Elect, "resourceNamespace": o.Lead.Namespace, "resourceName": o.Lead.Name,
			"leaseDuration": o.Lead.LeaseDuration.String(), "renewDeadline": o.Lead.RenewDeadline.String(),
			"retryPeriod": o.Lead.RetryPeriod.String(),
		},

		"taintEvictionController": map[string]any{
			"concurrentEvictions": o.Eviction.InFlight, "evictThroughBudgets": o.Eviction.Budgets,
			"evictionDeadline": o.Eviction.BudgetsFor.String(),
		},

		"nodeLifecycleController": map[string]any{
			"nodeMonitorPeriod":         o.NodeHealth.MonitorPeriod.String(),
			"nodeMonitorGracePeriod":    o.NodeHealth.MonitorGracePeriod.String(),
			"nodeStartupGracePeriod":    o.NodeHealth.StartupGracePeriod.String(),
			"nodeEvictionRate":          o.NodeHealth.EvictionRate,
			"secondaryNodeEvictionRate": o.NodeHealth.SecondaryEvictionRate,
			"unhealthyZoneThreshold":    o.NodeHealth.UnhealthyZoneThreshold,
			"largeClusterSizeThreshold": o.NodeHealth.LargeClusterSize,
			"markPodsAtZoneRate":        o.NodeHealth.MarkPodsAtZoneRate,
		},

		"rebalance": map[string]any{
			"policy": o.Rebalance.Policy, "goals": o.Rebalance.Goals, "every": o.Rebalance.Every.String(),
			"schedulerConfig": o.Rebalance.Config, "sampled": o.Rebalance.Sampled,
			"surge": o.Rebalance.Surge,
		},

		"evictionGuard": map[string]any{
			"deadline": o.Guard.Deadline.String(), "fallback": o.Guard.Fallback, "choices": o.Guard.Choices, "share": o.Guard.Share,
		},
	}}
}
