// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestSharedRankingAfterTermThatTellsApart verifies that a new term that selects only web-1 does
// not affect decisions for web-0. Before the pod with this term is added, no term distinguishes
// web-0 from web-1, and they share a ranking.
func TestSharedRankingAfterTermThatTellsApart(t *testing.T) {
	zone := func(key, value string) v1.PodAffinityTerm {
		return v1.PodAffinityTerm{TopologyKey: v1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}}
	}
	anti := func(key, value string) *v1.Affinity {
		return &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{zone(key, value)}}}
	}
	preferred := func(key, value string, weight int32) *v1.Affinity {
		return &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{
			{Weight: weight, PodAffinityTerm: zone(key, value)}}}}
	}
	required := func(key, value string) *v1.Affinity {
		return &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{zone(key, value)}}}
	}
	for name, later := range map[string]struct {
		affinity  *v1.Affinity
		nominated bool
	}{
		"anti-affinity":                    {anti("pod", "web-1"), false},
		"preference":                       {preferred("pod", "web-1", 50), false},
		"required affinity, as preference": {required("pod", "web-1"), false},
		"anti-affinity of a nominated pod": {anti("pod", "web-1"), true},
	} {
		t.Run(name, func(t *testing.T) {
			c := benchCluster(3, false) // in the zones z0, z1 and z2
			d := New(c, plugins.Default(), 1)
			d.limits.RankingCost = -1 // gives every class a ranking
			pod := func(name, app string, affinity *v1.Affinity) *v1.Pod {
				pod := benchPod(0, "plain")
				pod.Name, pod.UID, pod.Labels = name, types.UID(name), map[string]string{"app": app, "pod": name}
				pod.Spec.Affinity = affinity
				return pod
			}
			placed := func(pod *v1.Pod, node string) {
				pod.Spec.NodeName = node
				c.SetPod(pod)
			}
			placed(pod("y", "y", anti("app", "web")), "node-0")
			placed(pod("v", "v", preferred("app", "web", 1)), "node-1") // adds votes to the scores

			for _, name := range []string{"web-0", "web-1"} { // now the ranking counts for web-1
				p := c.Pending(pod(name, "web", nil))
				holds(t, c, d, p, d.Decide(p))
			}
			if later.nominated {
				c.Nominate(c.Pending(pod("x", "x", later.affinity)), "node-2")
			} else {
				placed(pod("x", "x", later.affinity), "node-2")
			}
			for _, name := range []string{"web-0", "web-1", "web-2"} {
				p := c.Pending(pod(name, "web", nil))
				holds(t, c, d, p, d.Decide(p))
			}
		})
	}
}
