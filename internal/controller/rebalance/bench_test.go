// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/world"
)

// BenchmarkMake plans for 5,000 nodes in 10 zones with 50,000 pods of 500 workloads. A fifth of the
// pods have a spread over zones, violated after a zone outage.
func BenchmarkMake(b *testing.B) {
	s := large(b)
	duplicates := *rebalance.OwnGoal("heal", 0)
	duplicates.Name, duplicates.Heal, duplicates.Duplicates = "RemoveDuplicates", nil, &rebalance.Duplicates{}
	for _, goal := range []struct {
		name  string
		goals []rebalance.Goal
	}{
		{"heal", []rebalance.Goal{*rebalance.OwnGoal("heal", 0)}},
		{"consolidate", []rebalance.Goal{*rebalance.OwnGoal("consolidate", 20)}},
		{"duplicates", []rebalance.Goal{duplicates}},
	} {
		b.Run(goal.name, func(b *testing.B) {
			moves := 0
			for b.Loop() {
				moves = len(rebalance.Make(s, &rebalance.Policy{Goals: goal.goals}, rebalance.Options{Profiles: profiles(b, "")}).Moves)
			}
			b.ReportMetric(float64(moves), "moves")
		})
	}
}

func large(t testing.TB) *rebalance.State {
	r := rand.New(rand.NewPCG(1, 2))
	s := &rebalance.State{AsOf: begin, World: world.Open(nil)}
	for i := range 5000 {
		put(s, object(t, fmt.Sprintf("node n%d zone=z%d cpu=16", i, i%10))...)
	}
	for app := range 500 {
		zones, spread := 10, ""
		if app%5 == 0 {
			zones, spread = 9, " spread=zone:5" // the last zone got no pods during its outage
		}
		for i := range 100 {
			node := r.IntN(500)*10 + i%zones
			line := fmt.Sprintf("pod a%d-%d on=n%d label=app:a%d owner=ReplicaSet/a%d cpu=%dm mem=512Mi%s", app, i, node, app, app, 100+100*(app%8), spread)
			put(s, object(t, line)...)
		}
	}
	return s
}

// BenchmarkPlanRoll plans to roll all of 100 nodes in 5 zones with 3,000 pods of 300 workloads.
func BenchmarkPlanRoll(b *testing.B) {
	s, rolling := &rebalance.State{AsOf: begin, World: world.Open(nil)}, &rebalance.Rolling{}
	for i := range 100 {
		name := fmt.Sprintf("n%d", i)
		put(s, object(b, fmt.Sprintf("node %s label=topology.kubernetes.io/zone:z%d cpu=16", name, i%5))...)
		rolling.Nodes = append(rolling.Nodes, name)
	}
	for i := range 3000 {
		put(s, object(b, fmt.Sprintf("pod a%d-%d on=n%d owner=ReplicaSet/a%d cpu=420m mem=64Mi", i/10, i%10, i%100, i/10))...)
	}
	moves := 0
	for b.Loop() {
		moves = rebalance.PlanRoll(s, rolling, rebalance.Options{Profiles: profiles(b, "")}).Moves
	}
	b.ReportMetric(float64(moves), "moves")
}
