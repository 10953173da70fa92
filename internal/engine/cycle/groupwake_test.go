// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAGroupIsWokenForWhatAnotherMemberHides verifies that an event wakes a group even if another
// member hides the reason for the wait. The large pod finds no room, since the small pod occupies
// the only large node. If the small pod ran elsewhere, the large pod would violate its topology
// spread on that node. Setting the zone of another node fixes the spread and moves the small pod
// elsewhere.
func TestAGroupIsWokenForWhatAnotherMemberHides(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	nodeIn := func(name, cpu, zone string) *v1.Node {
		n := aNode(name, cpu)
		if zone != "" {
			n.Labels[v1.LabelTopologyZone] = zone
		}
		return n
	}
	small, large := aPod("small", "1"), aPod("large", "2")
	large.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "z"}},
	}}
	for _, p := range []*v1.Pod{small, large} {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
	}
	events := []Event{
		Follows{}, Led{}, Seen{Nodes, nodeIn("large", "2", "a")}, Seen{Nodes, nodeIn("tiny", "100m", "b")}, Seen{Nodes, nodeIn("small", "1", "")},
	}
	for name, node := range map[string]string{"z1": "large", "z2": "large", "z3": "small"} {
		z := aPod(name, "0")
		z.Spec.NodeName, z.Labels = node, map[string]string{"app": "z"}
		events = append(events, Seen{Pods, z})
	}
	for _, e := range append(events, Seen{PodGroups, gangOf("g", 2)}, Seen{Pods, small}, Seen{Pods, large}, Tick{}) {
		for _, action := range core.Step(begin, e) {
			if bind, ok := action.(Bind); ok {
				t.Fatalf("%s is bound to %s", bind.Attempt.Pod.Name, bind.Attempt.Node)
			}
		}
	}

	later, bound := begin.Add(time.Minute), map[string]string{}
	core.Step(later, Seen{Nodes, nodeIn("small", "1", "b")})
	for range 3 {
		for _, action := range core.Step(later, Tick{}) {
			if bind, ok := action.(Bind); ok {
				bound[bind.Attempt.Pod.Name] = bind.Attempt.Node
			}
		}
	}
	if bound["small"] != "small" || bound["large"] != "large" {
		t.Errorf("bound: %v", bound)
	}
}
