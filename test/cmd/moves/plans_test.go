// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/world"
)

// stateOf returns the state of a crowd, as berth rebalance would read it from the API.
func stateOf(t testing.TB, o *options, wait bool) *rebalance.State {
	t.Helper()
	c, err := planCrowd(o.nodes, o.pods)
	if err != nil {
		t.Fatal(err)
	}
	s := &rebalance.State{AsOf: time.Now(), World: world.Open(nil)}
	add := func(objects ...metav1.Object) {
		for _, o := range objects {
			o.SetUID(types.UID(fmt.Sprintf("%T/%s/%s", o, o.GetNamespace(), o.GetName())))
			s.World.Put(o)
		}
	}
	for _, n := range c.nodes {
		add(n.DeepCopy())
	}
	for _, a := range c.apps {
		d, rs, budget := a.newOwners()
		add(d)
		rs.OwnerReferences = a.ownedBy(d)
		add(rs)
		a.set = rs
		if budget != nil {
			add(budget)
		}
		for k, place := range a.places {
			pod := a.newPod(k, c.nodes[place].Name)
			pod.Spec.SchedulerName = v1.DefaultSchedulerName
			add(pod)
			setRunning(pod)
		}
	}
	for i := range bigPods {
		if wait {
			pod := bigPod(i)
			pod.Spec.SchedulerName = v1.DefaultSchedulerName
			add(pod)
		}
	}
	return s
}

func (p *planned) policyOf(t testing.TB, o *options) *rebalance.Policy {
	t.Helper()
	if p.goals != nil {
		args := p.goals(o)
		namespace := ""
		if p.wait {
			namespace, args = args[2], args[:1]
		}
		goals, err := rebalance.ReadGoals(args, namespace)
		if err != nil {
			t.Fatal(err)
		}
		return goals
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(p.policy), 0o600); err != nil {
		t.Fatal(err)
	}
	goals, err := policy.Load(file, func(string) (int32, bool) { return 0, false })
	if err != nil {
		t.Fatal(err)
	}
	return goals
}

func planFor(t testing.TB, o *options, p *planned, s *rebalance.State) *rebalance.Plan {
	t.Helper()
	configuration, err := config.Default(config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rebalance.Make(s, p.policyOf(t, o), rebalance.Options{Profiles: configuration.Profiles})
}

func factsAfter(s *rebalance.State, plan *rebalance.Plan) facts {
	var nodes []v1.Node
	var pods []v1.Pod
	for o := range s.World.Objects() {
		switch o := o.(type) {
		case *v1.Node:
			nodes = append(nodes, *o)
		case *v1.Pod:
			pods = append(pods, *o)
		}
	}
	carryOut(plan, nodes, pods)
	return factsOf(nodes, pods)
}

func TestTooFewNodesAreAnError(t *testing.T) {
	if _, err := planCrowd(100, 500); err == nil || err.Error() != "no node for pod 20 of app-7: 100 nodes are too few for 500 pods" {
		t.Error(err)
	}
}

// TestPlansAreWorthTheirMoves verifies that plans move pods and, for goals with an independent
// measure, that they reach their goal.
func TestPlansAreWorthTheirMoves(t *testing.T) {
	o := &options{nodes: 300, pods: 2000}
	before := factsAfter(stateOf(t, o, false), &rebalance.Plan{})
	better := map[string]func(after *facts) bool{
		"nothing":     func(after *facts) bool { return *after == before },
		"heal":        func(after *facts) bool { return after.violated == 0 },
		"consolidate": func(after *facts) bool { return after.inUse <= o.nodes-o.nodes/25 && after.violated <= before.violated },
		"all":         func(after *facts) bool { return after.violated == 0 && after.inUse <= o.nodes-o.nodes/25 },
		"policy":      func(after *facts) bool { return after.violated == 0 },
		"defragment":  func(after *facts) bool { return after.pending == 0 },
	}
	for i := range plans {
		p := &plans[i]
		t.Run(p.name, func(t *testing.T) {
			if p.name == "policy-low" && testing.Short() {
				t.Skip("policy-low begins its search anew after each move, which takes minutes: run without -short")
			}
			s := stateOf(t, o, p.wait)
			began := time.Now()
			plan := planFor(t, o, p, s)
			after := factsAfter(s, plan)
			t.Logf("%d moves, %d stays, %v, %v: %+v, before %+v", len(plan.Moves), len(plan.Stays), plan.Measures, time.Since(began), after, before)
			if is := better[p.name]; is != nil && !is(&after) {
				t.Errorf("after the plan: %+v, before %+v", after, before)
			}
			if p.name != "nothing" && len(plan.Moves) == 0 {
				t.Error("there is nothing to move")
			}
		})
	}
}

// TestNoPlanIsGivenUp verifies that the planner pins pods that a following plan would move again
// because of their ages. The first plan must still have at least 500 moves, and the fourth plan in
// a row must have none.
func TestNoPlanIsGivenUp(t *testing.T) {
	o := &options{nodes: 1000, pods: 10_000}
	p := &plans[slices.IndexFunc(plans, func(p planned) bool { return p.name == "policy" })]
	s, r := stateOf(t, o, p.wait), rand.New(rand.NewPCG(355, 1))
	for object := range s.World.Objects() {
		if pod, is := object.(*v1.Pod); is {
			at := metav1.NewTime(s.AsOf.Add(-time.Duration(r.IntN(140)) * time.Second))
			pod.CreationTimestamp, pod.Status.StartTime = at, &at
			for i := range pod.Status.Conditions {
				pod.Status.Conditions[i].LastTransitionTime = at
			}
		}
	}

	var moves []int
	for range 4 {
		plan := planFor(t, o, p, s)
		if len(moves) == 0 && len(plan.Notes) == 0 {
			t.Error("no pod is pinned: other ages are needed")
		}
		moves = append(moves, len(plan.Moves))
		s = plan.After(s)
	}
	if moves[0] < 500 || moves[3] != 0 {
		t.Errorf("plans one after the other have %v moves", moves)
	}
}

// BenchmarkPlans measures the planning of all plans, without an API server.
func BenchmarkPlans(b *testing.B) {
	of := &options{nodes: 5000, pods: 50_000}
	for i := range plans {
		b.Run(plans[i].name, func(b *testing.B) {
			s := stateOf(b, of, plans[i].wait)
			moves := 0
			for b.Loop() {
				moves = len(planFor(b, of, &plans[i], s).Moves)
			}
			b.ReportMetric(float64(moves), "moves")
		})
	}
}
