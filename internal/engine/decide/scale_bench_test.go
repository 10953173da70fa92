// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// BenchmarkZones measures decisions for pods that must spread over 100 zones, for nodes of four
// sizes; pods of one app follow each other.
func BenchmarkZones(b *testing.B) {
	for _, nodes := range []int{10_000, 100_000, 300_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			c := cluster.New()
			for i := range nodes {
				c.SetNode(&v1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{
						v1.LabelHostname: fmt.Sprintf("node-%d", i), v1.LabelTopologyZone: fmt.Sprintf("z%d", i%100),
					}},
					Status: v1.NodeStatus{Allocatable: v1.ResourceList{
						v1.ResourceCPU: *resource.NewQuantity(int64(16<<(i/100%4)), resource.DecimalSI), v1.ResourceMemory: resource.MustParse("64Gi"),
						v1.ResourcePods: resource.MustParse("110"),
					}},
				})
			}
			d := New(c, plugins.Default(), 1)
			i := 0
			for b.Loop() {
				app := fmt.Sprintf("app-%d", i/1000)
				pod := benchPod(0, "plain")
				pod.Name, pod.UID, pod.Labels = fmt.Sprint(i), types.UID(fmt.Sprint(i)), map[string]string{"app": app}
				pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule,
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
				}}
				p := c.Pending(pod)
				decision := d.Decide(p)
				if decision.Node == nil {
					b.Fatalf("pod %d: no node", i)
				}
				c.Place(p, decision.Node)
				i++
			}
		})
	}
}

// TestLargeDomainsAreGroups verifies that nodes are grouped by domain if the domains are few or
// have many nodes, so that a placed pod does not move all nodes of its domain to another group.
func TestLargeDomainsAreGroups(t *testing.T) {
	limits := effort.DefaultLimits()
	for _, test := range []struct {
		nodes, domains int
		byCount        bool
	}{{100, limits.FewDomains, false}, {5000, 1000, true}, {9_999, 100, true}, {10_000, 100, false}, {1_000_000, 100, false}} {
		ix := &index{c: &cluster.Cluster{Nodes: make([]*cluster.Node, test.nodes)}, limits: &limits}
		if got := ix.groupsByCount(test.domains); got != test.byCount {
			t.Errorf("%d nodes in %d domains: by count: %v", test.nodes, test.domains, got)
		}
	}
}
