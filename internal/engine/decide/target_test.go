// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestDaemonsAreJudgedOnTheirNode verifies that the verdict on the only node named by a pod is
// correct in all cases, without a ranking.
func TestDaemonsAreJudgedOnTheirNode(t *testing.T) {
	const nodes = 4
	for name, change := range map[string]func(c *cluster.Cluster, pod *v1.Pod){
		"room":    func(*cluster.Cluster, *v1.Pod) {},
		"no node": func(c *cluster.Cluster, _ *v1.Pod) { c.RemoveNode("node-0") },
		"full": func(c *cluster.Cluster, pod *v1.Pod) {
			other := pod.DeepCopy()
			other.UID, other.Spec.NodeName = "other", "node-0"
			other.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *c.Node("node-0").Size.List.Cpu()}
			c.SetPod(other)
		},
		"larger than the node, unlike the first": func(_ *cluster.Cluster, pod *v1.Pod) {
			pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("33")}
		},
		"cordoned": func(c *cluster.Cluster, _ *v1.Pod) {
			node := c.Node("node-0").Object().DeepCopy()
			node.Spec.Unschedulable = true
			c.SetNode(node)
		},
		"selector": func(_ *cluster.Cluster, pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{"disk": "ssd"} },
		"repelled": func(c *cluster.Cluster, pod *v1.Pod) {
			other := benchPod(0, "anti")
			other.UID, other.Spec.NodeName = "other", "node-0"
			other.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchLabels = pod.Labels
			c.SetPod(other)
		},
		"nominated": func(c *cluster.Cluster, pod *v1.Pod) {
			other := benchPod(0, "plain")
			other.UID = "other"
			other.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *c.Node("node-0").Size.List.Cpu()}
			c.Nominate(c.Pending(other), "node-0")
		},
		"spread": func(_ *cluster.Cluster, pod *v1.Pod) {
			pod.Spec.TopologySpreadConstraints = benchPod(0, "spread").Spec.TopologySpreadConstraints
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := benchCluster(nodes, false)
			d := New(c, plugins.Default(), 1)
			first := c.Pending(daemon(1, nodes)) // creates the skeleton from another pod
			holds(t, c, d, first, d.Decide(first))
			pod := daemon(0, nodes)
			change(c, pod)
			p := c.Pending(pod)
			holds(t, c, d, p, d.Decide(p))
		})
	}
}

// TestDaemonsKeepNothing verifies that decisions for daemon pods create no rankings and no bases.
func TestDaemonsKeepNothing(t *testing.T) {
	const nodes = 10
	c := benchCluster(nodes, false)
	d := New(c, plugins.Default(), 1)
	for i := range 20 * nodes {
		pod := daemon(i, nodes)
		pod.UID = types.UID(fmt.Sprint(i))
		p := c.Pending(pod)
		decision := d.Decide(p)
		if decision.Node == nil || decision.Node.Name != fmt.Sprintf("node-%d", i%nodes) {
			t.Fatalf("pod %d goes to %v", i, decision.Node)
		}
		c.Place(p, decision.Node)
	}
	if len(d.cache.rankings)+len(d.cache.bases) > 0 || len(d.planner.skeletons) != 1 {
		t.Errorf("%d rankings, %d bases and %d skeletons are kept", len(d.cache.rankings), len(d.cache.bases), len(d.planner.skeletons))
	}
}
