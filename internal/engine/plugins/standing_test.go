// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

func TestNodeUnschedulableCases(t *testing.T) { runPlain(t, NodeUnschedulable{}) }

func TestAPodThatNamesItsNodeFitsNoOther(t *testing.T) {
	c := cluster.New()
	load(t, c, "node a\nnode b")
	pod := waiting(t, c, "pod p")
	if got, want := judged(c, NodeName{}.Filter(c, pod)), "nothing to judge\n"; got != want {
		t.Errorf("without a name: got %q, want %q", got, want)
	}
	pod.SetNodeName("a")
	want := "a: ok\nb: NodeNameMismatch, unresolvable: node(s) didn't match the requested node name\n"
	if got := judged(c, NodeName{}.Filter(c, pod)); got != want {
		t.Errorf("with a name: got %q, want %q", got, want)
	}
}

func TestNodePortsCases(t *testing.T) { runPlain(t, NodePorts{}) }

func TestNodeDeclaredFeaturesCases(t *testing.T) { runPlain(t, NodeDeclaredFeatures{}) }

func TestImageLocalityCases(t *testing.T) { runPlain(t, ImageLocality{}) }

func runPlain(t *testing.T, plugin interface{ Name() string }) {
	runCases(t, "testdata/"+strings.ToLower(plugin.Name())+".txt", func(*testing.T, *datadriven.TestData) any { return plugin })
}

func TestTaintTolerationCases(t *testing.T) {
	runCases(t, "testdata/tainttoleration.txt", func(_ *testing.T, d *datadriven.TestData) any {
		return &TaintToleration{Compare: d.HasArg("compare")}
	})
}

// The argument added=ZONE adds a required affinity to the zone for filters, and a preferred
// affinity of weight 5 for scores.
func TestNodeAffinityCases(t *testing.T) {
	runCases(t, "testdata/nodeaffinity.txt", func(t *testing.T, d *datadriven.TestData) any {
		var zone string
		if d.MaybeScanArgs(t, "added", &zone); zone == "" {
			return made(t, NewNodeAffinity, nil)
		}
		term := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{zone}}}}
		added := &v1.NodeAffinity{}
		if d.Cmd == "score" {
			added.PreferredDuringSchedulingIgnoredDuringExecution = []v1.PreferredSchedulingTerm{{Weight: 5, Preference: term}}
		} else {
			added.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term}}
		}
		return made(t, NewNodeAffinity, &config.NodeAffinityArgs{AddedAffinity: added})
	})
}

// Arguments of the cases: strategy=, resources=NAME:WEIGHT,…, shape=UTILISATION:SCORE,…, ignored=,
// ignoredGroups=.
func TestNodeResourcesFitCases(t *testing.T) {
	runCases(t, "testdata/noderesourcesfit.txt", func(t *testing.T, d *datadriven.TestData) any {
		strategy := &config.ScoringStrategy{Type: config.LeastAllocated, Resources: specsIn(t, d)}
		var kind string
		if d.MaybeScanArgs(t, "strategy", &kind); kind != "" {
			strategy.Type = config.ScoringStrategyType(kind)
		}
		for _, pair := range pairsIn(t, d, "shape") {
			if strategy.RequestedToCapacityRatio == nil {
				strategy.RequestedToCapacityRatio = &config.RequestedToCapacityRatioParam{}
			}
			utilization, _ := strconv.Atoi(pair[0])
			strategy.RequestedToCapacityRatio.Shape = append(strategy.RequestedToCapacityRatio.Shape,
				config.UtilizationShapePoint{Utilization: int32(utilization), Score: int32(number(t, pair[1]))})
		}
		args := &config.NodeResourcesFitArgs{ScoringStrategy: strategy}
		for _, pair := range pairsIn(t, d, "ignored") {
			args.IgnoredResources = append(args.IgnoredResources, pair[0])
		}
		for _, pair := range pairsIn(t, d, "ignoredGroups") {
			args.IgnoredResourceGroups = append(args.IgnoredResourceGroups, pair[0])
		}
		return made(t, NewNodeResourcesFit, args)
	})
}

func TestNodeResourcesBalancedAllocationCases(t *testing.T) {
	runCases(t, "testdata/noderesourcesbalancedallocation.txt", func(t *testing.T, d *datadriven.TestData) any {
		return made(t, NewNodeResourcesBalancedAllocation, &config.NodeResourcesBalancedAllocationArgs{Resources: specsIn(t, d)})
	})
}

func specsIn(t *testing.T, d *datadriven.TestData) (specs []config.ResourceSpec) {
	for _, pair := range pairsIn(t, d, "resources") {
		specs = append(specs, config.ResourceSpec{Name: pair[0], Weight: number(t, pair[1])})
	}
	return specs
}

func pairsIn(t *testing.T, d *datadriven.TestData, key string) (pairs [][2]string) {
	t.Helper()
	var list string
	if d.MaybeScanArgs(t, key, &list); list == "" {
		return nil
	}
	for _, item := range strings.Split(list, ",") {
		name, value, _ := strings.Cut(item, ":")
		pairs = append(pairs, [2]string{name, value})
	}
	return pairs
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func made[A, P any](t *testing.T, construct func(A) (P, error), args A) P {
	t.Helper()
	plugin, err := construct(args)
	if err != nil {
		t.Fatal(err)
	}
	return plugin
}

func TestSchedulingGatesAreNamed(t *testing.T) {
	c := cluster.New()
	pod := &v1.Pod{Spec: v1.PodSpec{SchedulingGates: []v1.PodSchedulingGate{{Name: "foo"}, {Name: "bar"}}}}
	if got, want := (SchedulingGates{}).Admit(c.Pending(pod)), "waiting for scheduling gates: [foo bar]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := (SchedulingGates{}).Admit(c.Pending(&v1.Pod{})); got != "" {
		t.Errorf("a pod without gates waits for %q", got)
	}
}
