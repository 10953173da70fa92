// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestPlansLeaveTheClusterAsItWas verifies that planning reverts all placements, removals,
// protections and changes of nominations. It also verifies that the members fit on the planned
// nodes after the victims of the plan are removed.
func TestPlansLeaveTheClusterAsItWas(t *testing.T) {
	placed, planned, reserved := 0, 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c := fullCluster(rng)
		a := newAttempt(c, 2+rng.IntN(4), func(i int) *v1.Pod {
			return newPod(fmt.Sprint("m", i), fmt.Sprintf("%dm", 500*(1+rng.IntN(4))), int32(10*rng.IntN(3)))
		})
		if rng.IntN(2) == 0 {
			a.TopologyKey = "rack"
		}
		if m := a.Members[rng.IntN(len(a.Members))]; rng.IntN(2) == 0 {
			c.Nominate(m.Waiting, fmt.Sprint("n", rng.IntN(6)))
		}
		before := describeCluster(c)

		if err := a.Place(); err != nil {
			t.Fatal(err)
		}
		if a.HasEnough() {
			placed++
		}
		a.Rewind()
		checkUnchanged(t, seed, "Place and Rewind", before, c)

		if plan := a.PlanRoom(); plan != nil {
			planned++
			checkPlan(t, seed, a, plan)
		}
		checkUnchanged(t, seed, "PlanRoom", before, c)
		if places, _ := a.PlanReservation(nil, func(*cluster.Pod) (end time.Time) { return end }); places != nil {
			reserved++
		}
		checkUnchanged(t, seed, "PlanReservation", before, c)
	}
	if placed < 20 || planned < 20 || reserved < 20 {
		t.Errorf("only %d groups fitted, %d plans made room, %d reserved it", placed, planned, reserved)
	}
}

// fullCluster returns six nodes in two racks, with pods of three priorities on them.
func fullCluster(rng *rand.Rand) *cluster.Cluster {
	c := cluster.New()
	for i := range 6 {
		n := newNode(fmt.Sprint("n", i), fmt.Sprint(2+rng.IntN(3)))
		n.Labels["rack"] = fmt.Sprint("r", i%2)
		node := c.SetNode(n)
		for k := range rng.IntN(5) {
			p := newPod(fmt.Sprintf("there-%d-%d", i, k), "500m", int32(10*rng.IntN(3)))
			c.Place(c.Pending(p), node)
		}
	}
	return c
}

// checkPlan verifies that the victims of a plan have a lower priority, and that the members fit on
// the planned nodes after the victims are removed.
func checkPlan(t *testing.T, seed uint64, a *Attempt, plan *RoomPlan) {
	t.Helper()
	gone := Without(a.Cluster)
	defer gone.RestoreAfter(0)
	for _, unit := range plan.Victims {
		for _, victim := range unit {
			if victim.Class.Priority >= a.highestPriority() {
				t.Errorf("seed %d: %s leaves, of priority %d", seed, victim.Name(), victim.Class.Priority)
			}
		}
		gone.Remove(unit...)
	}

	defer a.Rewind()
	if !a.PlaceAs(plan) {
		t.Errorf("seed %d: a plan has %d of %d places", seed, len(plan.Places), a.Need)
	}
	for n := range a.eachNode {
		if n.Requested.MilliCPU > n.Size.MilliCPU {
			t.Errorf("seed %d: %s has %dm and more is requested: %dm", seed, n.Name, n.Size.MilliCPU, n.Requested.MilliCPU)
		}
	}
}

func checkUnchanged(t *testing.T, seed uint64, what string, before map[string][]string, c *cluster.Cluster) {
	t.Helper()
	for name, after := range describeCluster(c) {
		if !slices.Equal(after, before[name]) {
			t.Fatalf("seed %d: after %s, node %s has %v; before %v", seed, what, name, after, before[name])
		}
	}
}

// describeCluster lists the pods and requests on each node, and the pods nominated to it.
func describeCluster(c *cluster.Cluster) map[string][]string {
	nodes := map[string][]string{}
	for _, n := range c.Nodes {
		has := map[string]bool{fmt.Sprintf("requested %dm", n.Requested.MilliCPU): true}
		for _, p := range n.Pods {
			has[fmt.Sprintf("%s of priority %d", p.Name(), p.Class.Priority)] = true
		}
		for _, p := range n.Nominated {
			has[fmt.Sprintf("%s of priority %d is nominated", p.Name(), p.Class.Priority)] = true
		}
		nodes[n.Name] = slices.Sorted(maps.Keys(has))
	}
	return nodes
}
