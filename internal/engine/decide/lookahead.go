// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// This file chooses between nodes with similar victims by the consequences of evicting them: see
// plugins.Profile.LookAhead.

// mostChoices bounds the number of nodes compared by one look-ahead.
const mostChoices = 32

// isRival reports whether the look-ahead may prefer a candidate with the cost other to the cheapest
// candidate.
func (a *cost) isRival(other *cost, ahead plugins.LookAhead) bool {
	switch {
	case !other.candidate:
		return false
	case ahead == plugins.HighestVictim:
		return other.violations == a.violations && other.highest == a.highest
	}
	return ahead == plugins.Ties && other.compare(a) == 0
}

// rivalsOf lists the suitable rivals of the cheapest node, the cheapest first. costOf returns the
// cost of a node below count. A nil suits accepts every node.
func rivalsOf(ahead plugins.LookAhead, best int32, count int, costOf func(int32) *cost, suits func(int32) bool) (nodes []int32) {
	if ahead == "" {
		return nil
	}
	for node := range int32(count) {
		if node != best && costOf(best).isRival(costOf(node), ahead) {
			nodes = append(nodes, node)
		}
	}
	slices.SortStableFunc(nodes, func(a, b int32) int { return costOf(a).compare(costOf(b)) })

	kept := nodes[:0]
	for _, node := range nodes {
		if len(kept) < mostChoices-1 && (suits == nil || suits(node)) {
			kept = append(kept, node)
		}
	}
	return kept
}

// consequences of an eviction.
type consequences struct {
	homeless int // victims with a replacement that fits nowhere, or without a replacement
	cascades int // replacements that fit nowhere and would preempt other pods
}

func (a consequences) compare(b consequences) int {
	return cmp.Or(cmp.Compare(a.homeless, b.homeless), cmp.Compare(a.cascades, b.cascades))
}

// lookAhead chooses between found and its rivals. It prefers the node whose victims' replacements
// fit on other nodes now, and then the fewest preemptions by replacements. Among equal nodes, the
// cheapest is chosen.
func (d *Decider) lookAhead(p *cluster.Pod, found Preemption) Preemption {
	least, left := consequences{}, effort.NewBudget(d.limits, d.c)
	for i, choice := range slices.Insert(found.rivals, 0, found) {
		if k := d.consequencesOf(p, &choice, left); i == 0 || k.compare(least) < 0 {
			found, least = choice, k
		}
		if least.homeless == 0 || left.IsSpent() {
			break
		}
	}
	found.rivals = nil
	return found
}

// consequencesOf supposes that p runs instead of the victims, and decides their replacements, the
// most important first. It restores the cluster. It must not use cluster.Suppose, because the
// decisions follow the log. Preemptions beyond the remaining effort are not counted.
func (d *Decider) consequencesOf(p *cluster.Pod, choice *Preemption, left *effort.Budget) (k consequences) {
	var guests []*cluster.Pod
	for _, v := range choice.Victims {
		d.c.RemovePod(v.UID)
	}
	defer func() {
		for _, guest := range slices.Backward(guests) {
			d.c.Leave(guest)
		}
		for _, v := range choice.Victims {
			d.c.Place(v, choice.Node)
		}
	}()
	defer d.c.ReleaseClaims()()

	guests = append(guests, d.c.Visit(p, choice.Node))
	for _, v := range choice.Victims {
		if v.Class.Controller == nil { // no controller replaces the pod
			k.homeless++
			continue
		}
		left.Spend(effort.CostOfDecision)
		replacement := cluster.NewPod(v.Class, v.Name, v.UID+"-replacement")
		if n := d.Decide(replacement).Node; n != nil {
			guests = append(guests, d.c.Visit(replacement, n))
			continue
		}
		k.homeless++
		if !left.IsSpent() && d.preempt(replacement, left, "").Node != nil {
			k.cascades++
		}
	}
	return k
}
