// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAGroupOfTwoSizesIsNotDecidedAgainAndAgain verifies that each pass on full nodes examines one
// member of each size, not all members. It also verifies that reprieving a pod does not place all
// members again if the free room cannot suffice.
func TestAGroupOfTwoSizesIsNotDecidedAgainAndAgain(t *testing.T) {
	const nodes, members = 100, 200
	c := cluster.New()
	for i := range nodes {
		n := newNode(fmt.Sprint("n", i), "4")
		c.SetNode(n)
		for k := range 4 {
			low := newPod(fmt.Sprintf("low-%d-%d", i, k), "1", 0)
			c.Place(c.Pending(low), c.Node(n.Name))
		}
	}
	a := newAttempt(c, members, func(i int) *v1.Pod { return newPod(fmt.Sprint("m", i), []string{"1", "500m"}[i%2], 10) })

	if err := a.Place(); err != nil || len(a.Placed()) > 0 {
		t.Fatal(err, len(a.Placed()))
	}
	if decisions := a.bound.effort / costOfDecision; decisions > 40 {
		t.Errorf("%d decisions about members that fit nowhere", decisions)
	}

	before := c.Log.Len()
	plan := a.PlanRoom()
	if plan == nil || len(plan.Places) != members || len(plan.Victims) != members*3/4 {
		t.Fatalf("%+v", plan)
	}
	if decisions := a.bound.effort / costOfDecision; decisions > 12*members {
		t.Errorf("what it took to plan is worth %d decisions", decisions)
	}
	if c.Log.Len() == before || len(a.Placed()) > 0 {
		t.Errorf("%d members are still placed", len(a.Placed()))
	}
	for i := range nodes {
		if n := c.Node(fmt.Sprint("n", i)); len(n.Pods) != 4 {
			t.Errorf("node %s is left with %d pods, had 4", n.Name, len(n.Pods))
		}
	}
}

// newAttempt returns an attempt for a gang that needs all of its pods, in a cycle that reserves
// nothing.
func newAttempt(c *cluster.Cluster, members int, podOf func(i int) *v1.Pod) *Attempt {
	profile, all := plugins.Default(), groups.New()
	g := all.SetObject(&groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: "g", UID: "g"}})
	r := &Request{
		Cluster: c, Units: Units{Cluster: c, Groups: all}, Profile: profile, Decider: decide.New(c, profile, 1),
		Host: idleHost{}, Rand: rand.New(rand.NewPCG(1, 1)), Limits: Limits{Search: DefaultSearchLimit, Work: DefaultWorkLimit},
		Group: g, Need: members,
	}
	for i := range members {
		pod := podOf(i)
		pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		all.SetPod(pod, true)
		p := c.Pending(pod)
		r.Members = append(r.Members, &Member{Form: Form{Pod: pod, Asked: p}, Waiting: p})
	}
	return New(r)
}

// idleHost is a Host that reserves nothing and has no leaving pods.
type idleHost struct{}

func (idleHost) Reserve(*Member, *cluster.Node) error                         { return nil }
func (idleHost) Release(*Member)                                              {}
func (idleHost) DevicesOf(*Member) []resourcev1.DeviceRequestAllocationResult { return nil }
func (idleHost) Contender(p *cluster.Pod, _ *v1.Pod) *cluster.Pod             { return p }
func (idleHost) BeginPlacement(string)                                        {}
func (idleHost) GeneratedPlacements(int)                                      {}
func (idleHost) EvaluatedPlacements(int, bool)                                {}
func (idleHost) ScoresPlacements() bool                                       { return false }
func (idleHost) ScorePlacements([]Placement) ([]float64, error)               { return nil, nil }
func (idleHost) Leaving() []*cluster.Pod                                      { return nil }

func newNode(name, cpu string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}},
	}
}

func newPod(name, cpu string, priority int32) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{Priority: &priority, Containers: []v1.Container{{
			Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
}
