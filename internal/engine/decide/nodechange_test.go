// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// nodeChanges are frequent node updates by a kubelet or an operator that affect no topology.
var nodeChanges = map[string]func(n *v1.Node, i int){
	"none": nil,
	"image": func(n *v1.Node, i int) {
		n.Status.Images = []v1.ContainerImage{{Names: []string{fmt.Sprint("example.com/app:", i)}, SizeBytes: 1 << 30}}
	},
	"label": func(n *v1.Node, i int) { n.Labels["last-seen"] = fmt.Sprint(i) },
	"taint": func(n *v1.Node, i int) {
		n.Spec.Taints = []v1.Taint{{Key: fmt.Sprint("at-", i), Effect: v1.TaintEffectPreferNoSchedule}}
	},
	"room": func(n *v1.Node, i int) {
		n.Status.Allocatable[v1.ResourcePods] = *resource.NewQuantity(int64(100+i%10), resource.DecimalSI)
	},
}

// decideWithChange decides the i-th pod of a mode after a change of the i-th node.
func decideWithChange(c *cluster.Cluster, d *Decider, i int, mode string, change func(*v1.Node, int)) (*cluster.Pod, Decision) {
	if change != nil {
		node := c.Node(fmt.Sprint("node-", i%c.Len())).Object().DeepCopy()
		change(node, i)
		c.SetNode(node)
	}
	pod := benchPod(i, mode)
	pod.UID = types.UID(fmt.Sprint("pod-", i))
	p := c.Pending(pod)
	return p, d.Decide(p)
}

// TestANodeThatChangesIsLookedAtAlone verifies that a ranking handles the change of a node that
// stays in its domains without examining other nodes.
func TestANodeThatChangesIsLookedAtAlone(t *testing.T) {
	const nodes = 300
	for name, change := range nodeChanges {
		for _, mode := range []string{"plain", "spread", "affinity", "anti"} {
			c := benchCluster(nodes, false)
			d := New(c, plugins.Default(), 1)
			const warm, more = 40, 100
			for i := range warm + more {
				if i == warm {
					d.meter.Looked = 0
				}
				p, decision := decideWithChange(c, d, i, mode, change)
				if i%20 == 0 {
					holds(t, c, d, p, decision)
				}
				c.Place(p, decision.Node)
			}
			if each := d.meter.Looked / more; each > nodes/2 {
				t.Errorf("%s, %s: %d looks for each decision", name, mode, each)
			}
		}
	}
}

// BenchmarkNodeChanges measures a decision after the change of one node of 5,000, including the
// change.
func BenchmarkNodeChanges(b *testing.B) {
	for name, change := range nodeChanges {
		for _, mode := range []string{"plain", "spread", "affinity", "anti", "1000 apps, spread"} {
			b.Run(name+"/"+mode, func(b *testing.B) {
				c := benchCluster(5000, false)
				d := New(c, plugins.Default(), 1)
				for i := 0; b.Loop(); i++ {
					p, decision := decideWithChange(c, d, i, mode, change)
					c.Place(p, decision.Node)
					const kept = 1000
					c.RemovePod(types.UID(fmt.Sprint("pod-", i-kept)))
				}
			})
		}
	}
}

// TestObjectsThatStayWhatTheyAreToDecisions verifies that plans survive controllers' irrelevant
// updates of the objects used by the plans. They also survive new namespaces as long as no term
// selects namespaces.
func TestObjectsThatStayWhatTheyAreToDecisions(t *testing.T) {
	c := benchCluster(20, false)
	d := New(c, plugins.Default(), 1)
	planOf := func() *plan {
		p := c.Pending(benchPod(0, "spread"))
		holds(t, c, d, p, d.Decide(p))
		if m := d.cache.byClass[p.Class.ID]; m != nil {
			return m.plan
		}
		return nil
	}
	meta := func(i int) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: "o", ResourceVersion: fmt.Sprint(i)}
	}
	write := func(i int) {
		c.Services.Set(&v1.Service{ObjectMeta: meta(i)})
		c.ReplicationControllers.Set(&v1.ReplicationController{ObjectMeta: meta(i)})
		c.ReplicaSets.Set(&appsv1.ReplicaSet{ObjectMeta: meta(i), Status: appsv1.ReplicaSetStatus{Replicas: int32(i)}})
		c.StatefulSets.Set(&appsv1.StatefulSet{ObjectMeta: meta(i)})
	}
	write(0)
	planOf() // a class gets a ranking at its second decision
	before := planOf()
	if before == nil {
		t.Fatal("the class has no ranking")
	}
	for i := range 5 {
		write(i)
		c.Namespaces.Set(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("new-", i), Labels: map[string]string{"team": "a"}}})
		if planOf() != before {
			t.Fatalf("write %d: there is a new plan", i)
		}
	}
	selecting := benchPod(0, "plain")
	selecting.UID, selecting.Spec.NodeName = "selecting", "node-0"
	selecting.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
		TopologyKey: v1.LabelHostname, LabelSelector: everyPod(), NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}},
	}}}}
	c.SetPod(selecting)
	before = planOf()
	c.Namespaces.Set(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "b"}}})
	if planOf() == before {
		t.Error("a namespace that a term selects now made no new plan")
	}
}
