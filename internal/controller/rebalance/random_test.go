// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/world"
)

var (
	worlds     = flag.Int("worlds", 1_000, "clusters of TestRandomWorlds; the other random tests have about 600 for 10,000")
	worldsSeed = flag.Uint64("worlds-seed", 0, "seed of the first of them")
)

// seeds returns the range of seeds for a test. With -worlds=10000, a test runs the number of worlds
// in full, or in short with the flag -short. Other values of -worlds scale both numbers.
func seeds(full, short int) (first, end uint64, runs int) {
	if runs = full * *worlds / 10_000; testing.Short() {
		runs = short * *worlds / 10_000
	}
	return *worldsSeed, *worldsSeed + uint64(runs), runs
}

// TestRandomWorlds makes plans for random clusters and policies; the flag -worlds sets their number
// (a tenth with -short). It verifies that in every plan no pod is moved twice or back to its old
// node, budgets allow every move, limits hold, no further pod is pending at the end, every
// successor passes the filters on its node, the policy's gauges go down, and a second plan is
// empty.
func TestRandomWorlds(t *testing.T) {
	moved := 0
	seed, end, runs := seeds(10_000, 1000)
	for ; seed < end; seed++ {
		moved += tryWorld(t, seed)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d worlds, %d moves", runs, moved)
	if moved < runs/3 {
		t.Errorf("only %d moves in %d worlds: they are too quiet to show anything", moved, runs)
	}
}

func tryWorld(t *testing.T, seed uint64) int {
	text, goals := draw(rand.New(rand.NewPCG(seed, 7)))
	s := &rebalance.State{AsOf: begin, World: world.Open(nil)}
	for line := range strings.Lines(text) {
		put(s, object(t, strings.TrimSpace(line))...)
	}
	options := rebalance.Options{Profiles: profiles(t, "")}
	if seed%7 == 3 {
		options.Profiles = profiles(t, mostAllocated)
	}
	if seed%5 == 1 {
		options.Placing = rebalance.Held
	}
	if seed%11 == 4 {
		options.Placing = rebalance.Sampled
	}
	policy := &rebalance.Policy{Goals: goals}
	if seed%6 == 2 {
		total, perNode := int(seed%4), 1+int(seed%2)
		policy.Limits = rebalance.Limits{Total: &total, PerNode: &perNode}
	}
	plan := rebalance.Make(s, policy, options)
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("seed %d, goals %v, %s: %s\n%s\n%s", seed, names(goals), plan.Placing, fmt.Sprintf(format, args...), text, show(plan))
	}
	for _, wrong := range faults(s, plan, options.Profiles[0]) {
		fail("%s", wrong)
	}
	for _, wrong := range beyond(plan, policy.Limits) {
		fail("%s", wrong)
	}
	if seed%10 == 0 { // the plan must not depend on the order of the cluster's objects
		objects := slices.Collect(s.World.Objects())
		rand.New(rand.NewPCG(seed, 8)).Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		shuffled := &rebalance.State{AsOf: begin, World: world.Open(objects)}
		if again := show(rebalance.Make(shuffled, policy, options)); again != show(plan) {
			fail("planned again:\n%s", again)
		}
	}
	if policy.Limits != (rebalance.Limits{}) {
		return len(plan.Moves) // later moves are left to the next plan
	}
	if second := rebalance.Make(plan.After(s), &rebalance.Policy{Goals: goals}, options); len(second.Moves) > 0 {
		fail("a second plan is not empty:\n%s", show(second))
	}
	return len(plan.Moves)
}

func names(goals []rebalance.Goal) (list []string) {
	for i := range goals {
		list = append(list, goals[i].Name)
	}
	return list
}

// faults returns the errors of a plan. It carries out the plan move by move on a separate cluster.
func faults(s *rebalance.State, plan *rebalance.Plan, profile *plugins.Profile) (list []string) {
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	pods, waited := map[types.UID]*v1.Pod{}, map[string]bool{}
	for o := range s.World.Objects() {
		if p, ok := o.(*v1.Pod); ok {
			pods[p.UID] = p
			waited[p.Name] = p.Spec.NodeName == ""
		}
	}
	moved := map[types.UID]bool{}
	for i := range plan.Moves {
		m := &plan.Moves[i]
		if moved[m.UID] {
			say("%s is moved twice", m.Name)
		}
		moved[m.UID] = true
		for _, wrong := range misclaimed(upTo(plan, m.Number).After(s)) {
			say("after move %d: %s", m.Number, wrong)
		}
		if m.From == m.To {
			say("%s goes back to %s", m.Name, m.To)
		}
		prefix := upTo(plan, i)
		prefix.Empties = m.Closed
		now := prefix.After(s)
		for _, budget := range overdrawn(now, pods[m.UID]) {
			say("move %d: the budget %s does not allow %s to go", m.Number, budget, m.Name)
		}
		if m.Closes == rebalance.MakingRoom {
			now = closing(now, m.From)
		}
		if why := lands(now, profile, pods[m.UID], m.To); why != "" && !claimed(pods[m.UID]) {
			say("move %d: %s does not pass the filters on %s: %s", m.Number, m.Name, m.To, why)
		}
	}
	after := homeless(plan.After(s))
	for name := range after {
		if !waited[name] {
			say("%s is pending, and had a node before", name)
		}
	}
	if slices.ContainsFunc(plan.Arrivals, func(a rebalance.Arrival) bool { return a.After > 0 }) {
		return list // the gauges also include formerly pending pods, on their new nodes
	}
	if len(plan.Moves) > 0 {
		for _, m := range plan.Measures {
			if m.After < m.Before {
				return list
			}
			if m.After > m.Before {
				say("%s rises from %d to %d before anything falls", m.Name, m.Before, m.After)
				return list
			}
		}
		say("there are moves, and nothing falls")
	}
	return list
}

// upTo returns the plan with only its first moves.
func upTo(plan *rebalance.Plan, moves int) *rebalance.Plan {
	prefix := *plan
	prefix.Moves = slices.Clone(plan.Moves[:moves])
	prefix.Arrivals = slices.DeleteFunc(slices.Clone(plan.Arrivals), func(a rebalance.Arrival) bool { return a.After > moves })
	return &prefix
}

// unready reports whether the kubelet has marked the pod unready.
func unready(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status != v1.ConditionTrue })
}

// overdrawn names the budgets for which the Eviction API would refuse a pod.
func overdrawn(s *rebalance.State, victim *v1.Pod) (names []string) {
	for o := range s.World.Objects() {
		b, ok := o.(*policyv1.PodDisruptionBudget)
		if !ok || b.Spec.Selector.MatchLabels["app"] != victim.Labels["app"] {
			continue
		}
		expected, healthy := 0, 0
		for other := range s.World.Objects() {
			if p, ok := other.(*v1.Pod); ok && p.Labels["app"] == victim.Labels["app"] {
				expected++
				if p.Spec.NodeName != "" && !unready(p) {
					healthy++
				}
			}
		}
		desired := max(expected-b.Spec.MaxUnavailable.IntValue(), 0)
		if unready(victim) && healthy >= desired && desired > 0 {
			continue // the pod does not count as healthy
		}
		if healthy-1 < desired {
			names = append(names, b.Name)
		}
	}
	return names
}

// beyond describes the limits of a policy that a plan exceeds.
func beyond(plan *rebalance.Plan, l rebalance.Limits) (list []string) {
	spent := rebalance.Spent{}.Plus(plan.Moves...)
	if l.Total != nil && spent.Total > *l.Total {
		list = append(list, fmt.Sprintf("%d moves, and %d are allowed", spent.Total, *l.Total))
	}
	for node, count := range spent.PerNode {
		if l.PerNode != nil && count > *l.PerNode {
			list = append(list, fmt.Sprintf("%d moves from %s, and %d are allowed", count, node, *l.PerNode))
		}
	}
	return list
}

func closing(s *rebalance.State, node string) *rebalance.State {
	next := &rebalance.State{AsOf: s.AsOf, World: s.World.Fork()}
	if n, there := world.Get[*v1.Node](next.World, "", node); there {
		n = n.DeepCopy()
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: rebalance.EmptyingTaint, Effect: v1.TaintEffectNoSchedule})
		next.World.Put(n)
	}
	return next
}

// clusterOf returns a cluster with the nodes and the placed pods of a state, except for one pod.
func clusterOf(s *rebalance.State, without types.UID) *cluster.Cluster {
	c := cluster.New()
	for o := range s.World.Objects() {
		switch o := o.(type) {
		case *v1.Node:
			c.SetNode(o)
		case *v1.Pod:
			if o.UID != without && o.Spec.NodeName != "" {
				c.SetPod(o)
			}
		}
	}
	return c
}

func lands(s *rebalance.State, profile *plugins.Profile, victim *v1.Pod, to string) string {
	c := clusterOf(s, victim.UID)
	next := victim.DeepCopy()
	next.UID, next.Spec.NodeName = "next", ""
	e := decide.NewPlain(c, profile).Evaluate(c.Pending(next))
	for i := range e.Nodes {
		if v := &e.Nodes[i]; v.Node.Name == to && v.Rejection != nil {
			return strings.Join(v.Rejection.Reasons, ", ")
		}
	}
	return ""
}

// homeless names the pods without a node.
func homeless(s *rebalance.State) map[string]bool {
	names := map[string]bool{}
	for o := range s.World.Objects() {
		if p, ok := o.(*v1.Pod); ok && p.Spec.NodeName == "" {
			names[p.Name] = true
		}
	}
	return names
}

// draw generates a cluster of a few nodes, and a policy.
func draw(r *rand.Rand) (text string, goals []rebalance.Goal) {
	var b strings.Builder
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	nodes := 2 + r.IntN(5)
	stores := &stores{r: r, ports: map[int]bool{}}
	for i := range nodes {
		fmt.Fprintf(&b, "node n%d%s zone=z%d cpu=%d pods=%d%s%s%s\n", i, stores.node(), r.IntN(3), 2+r.IntN(6), 3+r.IntN(8),
			one("", "", "", " label=spot:yes"), one("", "", "", "", " taint=old:NoSchedule", " taint=soft:PreferNoSchedule"), one("", "", "", "", "", "", " cordoned"))
	}
	apps := 1 + r.IntN(4)
	for i := range apps {
		options := fmt.Sprintf(" label=app:a%d owner=%s/a%d cpu=%dm", i, one("ReplicaSet", "ReplicaSet", "StatefulSet"), i, 200+100*r.IntN(12))
		options += one("", "", fmt.Sprintf(" spread=zone:%d", 1+r.IntN(2)), " spread=host:1", " spread=zone:1:soft", " spread=zone:1 spread=host:2", " spread=zone:1:honor")
		options += one("", "", "", fmt.Sprintf(" anti=app:a%d:host", r.IntN(apps)), fmt.Sprintf(" near=app:a%d:zone", r.IntN(apps)))
		options += one("", "", " prefer=spot:yes", " prefer=zone:z1", "")
		options += one("", "", "", " need=spot:yes", " tolerate=old", " emptydir", " prio=100")
		if r.IntN(5) == 0 {
			fmt.Fprintf(&b, "service a%d of=app:a%d\n", i, i)
		}
		claims := one("", "", "", "", "", "", " ephemeral", " device", " port")
		for j := range 1 + r.IntN(5) {
			node := r.IntN(nodes)
			on := fmt.Sprintf(" on=n%d%s", node, one("", "", "", "", "", " unready"))
			if r.IntN(12) == 0 {
				on, node = "", -1
			}
			if has, ok := stores.pod(claims, node); ok {
				fmt.Fprintf(&b, "pod a%d-%d%s%s%s age=%dm\n", i, j, on, options, has, r.IntN(90))
			}
		}
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, "budget a%d of=app:a%d unavailable=%d\n", i, i, r.IntN(3))
		}
	}
	for range 1 + r.IntN(3) {
		goals = append(goals, drawGoal(r))
	}
	return b.String(), goals
}

func drawGoal(r *rand.Rand) rebalance.Goal {
	evictor := rebalance.NewEvictor()
	low := map[v1.ResourceName]float64{v1.ResourceCPU: float64(20 + r.IntN(20)), v1.ResourcePods: 40}
	high := map[v1.ResourceName]float64{v1.ResourceCPU: float64(45 + r.IntN(40)), v1.ResourcePods: 70}
	switch r.IntN(9) {
	case 0, 1:
		return *rebalance.OwnGoal("heal", 0)
	case 2:
		return *rebalance.OwnGoal("spread", 0)
	case 3:
		return *rebalance.OwnGoal("return", 0)
	case 4:
		return *rebalance.OwnGoal("consolidate", 1+r.IntN(2))
	case 5:
		goal := rebalance.OwnGoal("defragment", 0)
		for i := range 4 {
			goal.Defragment.Pods = append(goal.Defragment.Pods, types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("a%d-%d", r.IntN(3), i)})
		}
		return *goal
	case 6:
		around := r.IntN(2) == 0
		if around {
			low, high = map[v1.ResourceName]float64{v1.ResourceCPU: 5}, map[v1.ResourceName]float64{v1.ResourceCPU: float64(5 + r.IntN(10))}
		}
		return rebalance.Goal{Name: "LowNodeUtilization", Evictor: evictor, Utilization: &rebalance.Utilization{Thresholds: low, Targets: high, Deviation: around}}
	case 7:
		return rebalance.Goal{Name: "HighNodeUtilization", Evictor: evictor, Utilization: &rebalance.Utilization{High: true, Thresholds: low, Targets: low}}
	}
	return rebalance.Goal{Name: "RemoveDuplicates", Evictor: evictor, Duplicates: &rebalance.Duplicates{}}
}
