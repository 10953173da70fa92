// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAVictimIsNotSparedThatKeepsMembersOffOtherNodes verifies that a pod excluded from a member's
// zone by anti-affinity is preempted, regardless of the member's node in the zone.
func TestAVictimIsNotSparedThatKeepsMembersOffOtherNodes(t *testing.T) {
	for seed := range uint64(20) {
		core, err := New(Options{
			Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}, Seed: seed,
		})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		core.Step(begin, Led{})
		for _, name := range []string{"n", "m"} {
			n := aNode(name, "1")
			n.Labels[v1.LabelTopologyZone] = "z"
			core.Step(begin, Seen{Nodes, n})
		}
		low, high := aPod("low", "1"), aPod("high", "1")
		low.Spec.NodeName, low.Labels = "n", map[string]string{"app": "web"}
		*high.Spec.Priority, high.Spec.SchedulingGroup = 10, &v1.PodSchedulingGroup{PodGroupName: new("g")}
		high.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
				TopologyKey: v1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: low.Labels},
			}},
		}}
		g := gangOf("g", 1)
		g.Spec.Priority = new(int32(10))
		for _, e := range []Event{Seen{Pods, low}, Seen{PodGroups, g}, Seen{Pods, high}} {
			core.Step(begin, e)
		}

		removed := false
		for _, action := range core.Step(begin, Tick{}) {
			switch a := action.(type) {
			case Remove:
				removed = true
			case Bind:
				t.Fatalf("seed %d: the member goes to %s, beside the pod that it must not be with", seed, a.Attempt.Node)
			}
		}
		if !removed {
			t.Errorf("seed %d: nobody leaves", seed)
		}
	}
}
