// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// The expected order is that logged by kube-scheduler v1.37 without a configuration.
func TestDefaultProfileIsUpstreams(t *testing.T) {
	want := map[Point][]string{
		PreEnqueue: {"SchedulingGates", "DynamicResources", "DefaultPreemption"},
		QueueSort:  {"PrioritySort"},
		PreFilter: {
			"NodeName", "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit", "VolumeRestrictions",
			"NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity", "DynamicResources", "NodeDeclaredFeatures",
		},
		Filters: {
			"NodeName", "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit", "VolumeRestrictions",
			"NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity", "DynamicResources", "NodeDeclaredFeatures",
		},
		PostFilter:         {"DynamicResources", "DefaultPreemption"},
		PodGroupPostFilter: {"DynamicResources", "DefaultPreemption"},
		PreScore: {
			"TaintToleration", "NodeAffinity", "NodeResourcesFit", "VolumeBinding", "PodTopologySpread", "InterPodAffinity",
			"NodeResourcesBalancedAllocation",
		},
		Score: {
			"TaintToleration", "NodeAffinity", "NodeResourcesFit", "VolumeBinding", "PodTopologySpread", "InterPodAffinity",
			"DynamicResources", "NodeResourcesBalancedAllocation", "ImageLocality",
		},
		Reserve:        {"VolumeBinding", "DynamicResources"},
		PreBind:        {"VolumeBinding", "DynamicResources"},
		Bind:           {"DefaultBinder"},
		PlacementScore: {"NodeResourcesFit"},
	}
	profile := Default()
	if diff := cmp.Diff(want, profile.At); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	weights := map[string]int64{
		"TaintToleration": 3, "NodeAffinity": 2, "NodeResourcesFit": 1, "VolumeBinding": 1, "PodTopologySpread": 2, "InterPodAffinity": 2,
		"DynamicResources": 2, "NodeResourcesBalancedAllocation": 1, "ImageLocality": 1,
	}
	if diff := cmp.Diff(weights, profile.Weights); diff != "" {
		t.Errorf("weights (-want +got)\n%s", diff)
	}
	if !profile.Preemption || len(profile.Outside) > 0 {
		t.Errorf("preemption %t, outside %v", profile.Preemption, profile.Outside)
	}
}

// Every plugin named at an extension point such as Filter, Score or Reserve must be called there,
// in the order of the names.
func TestDefaultProfileAsksWhatItNames(t *testing.T) {
	profile := Default()
	var filters, scorers, reservers []string
	for _, f := range profile.Filters {
		filters = append(filters, f.Name())
	}
	for _, s := range profile.Scorers {
		scorers = append(scorers, s.Name())
		if s.Weight != profile.Weights[s.Name()] {
			t.Errorf("%s weighs %d, want %d", s.Name(), s.Weight, profile.Weights[s.Name()])
		}
	}
	for _, r := range profile.Reservers {
		reservers = append(reservers, r.Name())
	}
	for point, got := range map[Point][]string{Filters: filters, Score: scorers, Reserve: reservers} {
		if diff := cmp.Diff(profile.At[point], got); diff != "" {
			t.Errorf("%v (-want +got)\n%s", point, diff)
		}
	}
}

func TestAFilterCanBeCutDownToOneExtensionPoint(t *testing.T) {
	c := cluster.New()
	load(t, c, "node a\nnode b")
	pod := waiting(t, c, `kind: Pod
metadata: {name: p}
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [a]}]}]`)
	for _, test := range []struct {
		name    string
		without Point
		want    string
	}{
		{"whole", 0, "a: ok\nb: not in question\n"},
		{"without filter", Filters, "a: ok\nb: not in question\n"},
		{"without preFilter", PreFilter, "a: ok\nb: NodeAffinityMismatch, unresolvable: node(s) didn't match Pod's node affinity/selector\n"},
	} {
		at := map[Point][]string{}
		for _, point := range []Point{PreFilter, Filters} {
			if point != test.without {
				at[point] = []string{"NodeAffinity"}
			}
		}
		profile, err := NewProfile("s", at, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		judge := profile.Filters[0].Filter(c, pod)
		if got := judged(c, judge); got != test.want {
			t.Errorf("%s: got\n%s\nwant\n%s", test.name, got, test.want)
		}
		if test.without == Filters && judge.Node != nil {
			t.Error("a plugin at preFilter alone must not judge single nodes")
		}
	}
}

func TestPluginsFromOutsideAreKeptByName(t *testing.T) {
	profile, err := NewProfile("s", map[Point][]string{Filters: {"NodeName", "Mine"}, Score: {"Mine"}}, map[string]int64{"Mine": 5}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(profile.Outside, []string{"Mine"}) || len(profile.Filters) != 1 || len(profile.Scorers) != 0 {
		t.Errorf("outside %v, %d filters, %d scorers", profile.Outside, len(profile.Filters), len(profile.Scorers))
	}
}
