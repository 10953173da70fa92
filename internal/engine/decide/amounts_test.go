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
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestHugeRequestsOfOthers verifies that manually bound pods whose total requests overflow fill
// their node, but do not affect the pods decided after them.
func TestHugeRequestsOfOthers(t *testing.T) {
	memory := func(amount string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceMemory: resource.MustParse(amount)}
	}
	cpu := func(amount string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceCPU: resource.MustParse(amount)}
	}
	for name, bound := range map[string][]v1.ResourceList{
		"two of memory":                   {memory("9223371865056083968"), memory("9223371865056083968")},
		"two of CPU":                      {cpu("9223372036854775"), cpu("9223372036854775")},
		"one of memory, six of nothing":   {memory("9223372036854775807"), {}, {}, {}, {}, {}, {}},
		"one of more CPU than is counted": {cpu("9223372036854775807")},
		"one of 1e30":                     {memory("1e30")},
	} {
		t.Run(name, func(t *testing.T) {
			c := benchCluster(3, false)
			for i, requests := range bound {
				pod := benchPod(i, "plain")
				pod.UID, pod.Spec.NodeName = types.UID(fmt.Sprint("bound-", i)), "node-0"
				pod.Spec.Containers[0].Resources.Requests = requests
				c.SetPod(pod)
			}
			d := New(c, plugins.Default(), 1)
			for i, mode := range []string{"spread", "plain", "affinity", "anti", "500 shapes"} {
				pod := benchPod(i, mode)
				pod.UID = types.UID(fmt.Sprint("waiting-", i))
				p := c.Pending(pod)
				decision := d.Decide(p)
				holds(t, c, d, p, decision)
				if decision.Node == nil || decision.Node.Name == "node-0" {
					t.Errorf("%s: it goes to %v, want node-1 or node-2", mode, decision.Node)
				}
			}
			for i := range bound {
				c.RemovePod(types.UID(fmt.Sprint("bound-", i)))
			}
			if room := &c.Rooms[c.Node("node-0").Index]; room.RequestedCPU+room.RequestedMemory+room.NonZeroCPU+room.NonZeroMemory != 0 {
				t.Errorf("when they have gone, still requested: %+v", *room)
			}
		})
	}
}

// TestHugeRequestsOfOneself verifies that a pod that fits nowhere is not placed, even if 64-bit
// arithmetic wraps its requests around.
func TestHugeRequestsOfOneself(t *testing.T) {
	for _, requests := range []v1.ResourceList{
		{v1.ResourceCPU: resource.MustParse("9223372036854775807")},
		{v1.ResourceMemory: resource.MustParse("9223372036854775807")},
		{v1.ResourceEphemeralStorage: resource.MustParse("1e30")},
		{"example.com/gpu": resource.MustParse("9223372036854775807")},
	} {
		c := benchCluster(2, false)
		d := New(c, plugins.Default(), 1)
		pod := benchPod(0, "plain")
		container := pod.Spec.Containers[0]
		container.Resources.Requests = requests
		pod.Spec.Containers = []v1.Container{container, container} // their sum exceeds an int64
		p := c.Pending(pod)
		decision := d.Decide(p)
		holds(t, c, d, p, decision)
		if decision.Node != nil {
			t.Errorf("%v: it goes to %s", requests, decision.Node.Name)
		}
	}
}

// TestHugeNode verifies that the scores of a node with more than 2^63/100 of a resource stay in
// range and correctly ordered.
func TestHugeNode(t *testing.T) {
	for _, strategy := range []struct {
		name  string
		score func(requested, allocatable int64) int64
		want  [3]int64 // with nothing, half or all of the resource requested
	}{
		{"least allocated", plugins.LeastAllocatedScore, [3]int64{100, 50, 0}},
		{"most allocated", plugins.MostAllocatedScore, [3]int64{0, 50, 100}},
	} {
		const all = 1 << 62
		got := [3]int64{strategy.score(0, all), strategy.score(all/2, all), strategy.score(all, all)}
		if got != strategy.want {
			t.Errorf("%s: %v, want %v", strategy.name, got, strategy.want)
		}
	}
	c := cluster.New()
	for i, memory := range []string{"4611686018427387904", "64Gi"} {
		name := fmt.Sprint("node-", i)
		c.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse("32"), v1.ResourceMemory: resource.MustParse(memory), v1.ResourcePods: resource.MustParse("110"),
			}},
		})
	}
	d := New(c, plugins.Default(), 1)
	p := c.Pending(benchPod(0, "plain"))
	holds(t, c, d, p, d.Decide(p))
}

// holds compares a decision with the result of the plain evaluator, and checks the range of every
// score.
func holds(t *testing.T, c *cluster.Cluster, d *Decider, p *cluster.Pod, decision Decision) {
	t.Helper()
	e := NewPlain(c, d.profile).Evaluate(p)
	if decision.Feasible != e.Feasible {
		t.Fatalf("%d nodes are feasible, want %d\n%s", decision.Feasible, e.Feasible, describe(e))
	}
	if decision.Node == nil {
		if fast, plain := d.Diagnose(p).Message(""), e.Message(""); fast != plain {
			t.Fatalf("the fast way says\n%s\nthe plain way\n%s", fast, plain)
		}
		return
	}
	if v := e.Verdict(decision.Node); v.Rejection != nil || v.Total != e.Best()[0].Total || v.Total != decision.Total {
		t.Fatalf("%s with %d, but\n%s", decision.Node.Name, decision.Total, describe(e))
	}
	for i := range e.Nodes {
		for _, s := range e.Nodes[i].Scores {
			if s.Score < 0 || s.Score > 3*plugins.MaxScore {
				t.Errorf("%s scores %d on %s", s.Plugin, s.Score, e.Nodes[i].Node.Name)
			}
		}
	}
}

// TestVotesBeyondAnInt32AreNotWrapped verifies that the sum of very many preferences of very many
// pods in one domain is compared without overflow, both by rankings that group nodes by the sum and
// by other rankings.
func TestVotesBeyondAnInt32AreNotWrapped(t *testing.T) {
	for _, apart := range []bool{false, true} {
		c := benchCluster(4, false)
		d := New(c, plugins.Default(), 1)
		d.limits.FewDomains, d.limits.RankingCost = 0, -1
		if apart { // foreign terms are summed by node
			d.limits.BaseGroups, d.limits.RankingGroups, d.limits.SumsCost = 0, 0, -1
		}
		loved := func(node string, weight int32) {
			pod := towards(node, preferring(v1.LabelHostname, everyPod()))
			pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].Weight = weight
			pod.Spec.NodeName = node
			c.SetPod(pod)
			again := pod.DeepCopy()
			again.UID += "-too"
			c.SetPod(again)
		}
		loved("node-1", 1<<30) // like the sum for millions of pods; both pods together have 2^31 votes
		loved("node-2", 1000)
		for i := range 3 {
			p := c.Pending(benchPod(i, "plain"))
			decision := d.Decide(p)
			if decision.Node == nil || decision.Node.Name != "node-1" {
				t.Fatalf("%+v, want node-1", decision)
			}
			holds(t, c, d, p, decision)
		}
	}
}
