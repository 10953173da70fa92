// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
	"github.com/berth-k8s/berth/internal/usage"
)

// refuses verifies that an error is a usage error with this message.
func refuses(t *testing.T, about string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || !usage.IsError(err) {
		t.Errorf("%s: %v, want a usage error with %q", about, err, want)
	}
}

// shapeOf parses the flags of berth nodes.
func shapeOf(t *testing.T, words ...string) (*simkubelet.Shape, error) {
	t.Helper()
	var s Nodes
	flags := pflag.NewFlagSet("nodes", pflag.ContinueOnError)
	s.AddFlags(flags)
	if err := flags.Parse(words); err != nil {
		t.Fatal(err)
	}
	return s.ShapeFor("--count", "v1.37.2")
}

func TestFlagsOfNodesMakeAShape(t *testing.T) {
	got, err := shapeOf(t, "--count", "7", "--zones", "2", "--region", "eu", "--name-prefix", "gpu-", "--cpu", "500m", "--memory", "1Gi",
		"--pods", "20", "--resource", "nvidia.com/gpu=8", "--label", "tier=", "--label", "example.com/rack=r",
		"--taint", "dedicated=gpu:NoSchedule", "--taint", "dedicated:NoExecute", "--lease-renew-interval", "15s",
		"--node-status-report-frequency", "1m", "--terminate-after", "2s")
	if err != nil {
		t.Fatal(err)
	}
	if got.Prefix != "gpu-" || got.Count != 7 || got.Zones != 2 || got.Region != "eu" || got.Version != "v1.37.2" {
		t.Errorf("%+v", got)
	}
	if got.RenewInterval != 15*time.Second || got.StatusInterval != time.Minute || got.TerminateAfter != 2*time.Second {
		t.Errorf("times: %+v", got)
	}
	for name, want := range map[v1.ResourceName]string{"cpu": "500m", "memory": "1Gi", "pods": "20", "nvidia.com/gpu": "8"} {
		if amount := got.Capacity[name]; amount.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s: %v, want %s", name, &amount, want)
		}
	}
	if tier, has := got.Labels["tier"]; len(got.Labels) != 2 || tier != "" || !has || got.Labels["example.com/rack"] != "r" {
		t.Errorf("labels: %v", got.Labels)
	}
	want := []v1.Taint{{Key: "dedicated", Value: "gpu", Effect: v1.TaintEffectNoSchedule}, {Key: "dedicated", Effect: v1.TaintEffectNoExecute}}
	if len(got.Taints) != 2 || got.Taints[0] != want[0] || got.Taints[1] != want[1] {
		t.Errorf("taints: %v", got.Taints)
	}

	if got, err = shapeOf(t, "--count", "0"); err != nil || got.RenewInterval != simkubelet.RenewIntervalFor(0) {
		t.Errorf("no nodes: %+v, %v", got, err)
	}
	if got, err = shapeOf(t, "--count", "5000"); err != nil || got.RenewInterval != simkubelet.RenewIntervalFor(5000) {
		t.Errorf("many nodes: %+v, %v", got, err)
	}
}

func TestNodesThatCannotBeAreRefused(t *testing.T) {
	for words, want := range map[string]string{
		"--count -1":                                "--count -1: must be 0 or more",
		"--count 20000000":                          "--count 20000000: with 110 pods each there are addresses for ",
		"--zones -1":                                "--zones -1: must be 0 or more",
		"--workers 0":                               "--workers 0: must be 1 or more",
		"--region a/b":                              `--region "a/b": `,
		"--name-prefix Node-":                       `--name-prefix "Node-": the name Node-3: a lowercase RFC 1123 subdomain`,
		"--count 10 --name-prefix " + long(62):      "must be no more than 63",
		"--pods -1":                                 "--pods -1: must be between 0 and 4096",
		"--pods 4097":                               "--pods 4097: must be between 0 and 4096",
		"--cpu many":                                `--cpu "many": must be a quantity such as 32, 500m or 64Gi, not negative`,
		"--cpu -1":                                  `--cpu "-1": must be a quantity`,
		"--memory 1GB":                              `--memory "1GB": must be a quantity`,
		"--resource gpu":                            `--resource "gpu": must be NAME=QUANTITY such as nvidia.com/gpu=8`,
		"--resource =8":                             `--resource "=8": must be NAME=QUANTITY`,
		"--resource nvidia.com/gpu=-8":              `--resource nvidia.com/gpu: "-8": must be a quantity`,
		"--resource cpu=4":                          `--resource "cpu=4": must be another resource; use --cpu for this one`,
		"--resource memory=4Gi":                     "use --memory for this one",
		"--resource pods=1000000000000":             "use --pods for this one",
		"--label tier":                              `--label "tier": must be KEY=VALUE`,
		"--label a/b/c=d":                           `--label "a/b/c=d": `,
		"--label tier=a/b":                          `--label "tier=a/b": `,
		"--taint dedicated":                         `--taint: taint "dedicated": no effect; write key=value:Effect`,
		"--taint :NoSchedule":                       `--taint: taint ":NoSchedule": key "": `,
		"--taint =v:NoSchedule":                     `--taint: taint "=v:NoSchedule": key "": `,
		"--taint a/b/c:NoSchedule":                  `--taint: taint "a/b/c:NoSchedule": key "a/b/c": `,
		"--taint k=a/b:NoSchedule":                  `--taint: taint "k=a/b:NoSchedule": value "a/b": `,
		"--taint k=v:Never":                         `--taint: taint "k=v:Never": effect "Never": must be NoSchedule, PreferNoSchedule or NoExecute`,
		"--taint k=v:noschedule":                    `effect "noschedule": must be NoSchedule`,
		"--taint k=v:":                              `effect "": must be NoSchedule`,
		"--taint k=a:NoExecute --taint k:NoExecute": `--taint: taint "k:NoExecute": a second one with the same key and effect`,
		"--taint k:NoExecute-":                      `--taint "k:NoExecute-": cannot remove a taint`,
		"--lease-renew-interval 999ms":              "--lease-renew-interval 999ms: must be between 1s and 40s, the lease's duration",
		"--lease-renew-interval 40s":                "--lease-renew-interval 40s: must be between 1s and 40s",
		"--lease-renew-interval -1s":                "--lease-renew-interval -1s: must be between 1s and 40s",
		"--node-status-report-frequency 0":          "--node-status-report-frequency 0s: must be more than 0",
		"--terminate-after -1s":                     "--terminate-after -1s: must be 0 or more",
		"--eviction-hard memory.available<x":        "--eviction-hard",
	} {
		_, err := shapeOf(t, strings.Fields(words)...)
		refuses(t, words, err, want)
	}
	if _, err := shapeOf(t, "--count", "10", "--name-prefix", long(61)); err != nil {
		t.Errorf("a name of 63 characters: %v", err)
	}
}

// long returns the beginning of a name, n characters long.
func long(n int) string { return strings.Repeat("n", n) }
