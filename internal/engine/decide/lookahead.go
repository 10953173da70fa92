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
const mostChoices = 128

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
	homeless []int32 // priorities of the pods that fit nowhere in the end, the highest first
	evicted  int     // pods preempted by replacements
}

func (a *consequences) compare(b *consequences) int {
	return cmp.Or(slices.Compare(a.homeless, b.homeless), cmp.Compare(a.evicted, b.evicted))
}

// lookAhead chooses between found and its rivals. It prefers the node that leaves the fewest pods
// of the highest priority without a node, and then the fewest preemptions by replacements. Among
// equal nodes, the cheapest is chosen.
func (d *Decider) lookAhead(p *cluster.Pod, found Preemption) Preemption {
	var least consequences
	left := effort.NewBudget(d.limits, d.c)
	for i, choice := range slices.Insert(found.rivals, 0, found) {
		if k := d.consequencesOf(p, &choice, left); i == 0 || k.compare(&least) < 0 {
			found, least = choice, k
		}
		if len(least.homeless)+least.evicted == 0 || left.IsSpent() {
			break
		}
	}
	found.rivals = nil
	return found
}

// consequencesOf supposes that p runs instead of the victims, and decides their replacements, the
// most important first, and the replacements of the pods that these preempt. It restores the
// cluster. It must not use cluster.Suppose, because the decisions follow the log. Replacements
// beyond the remaining effort preempt no pods.
func (d *Decider) consequencesOf(p *cluster.Pod, choice *Preemption, left *effort.Budget) (k consequences) {
	var undo []func()
	defer func() {
		for _, do := range slices.Backward(undo) {
			do()
		}
	}()
	defer d.c.ReleaseClaims()()

	var waiting []*cluster.Pod
	evict := func(victims []*cluster.Pod) {
		for _, v := range victims {
			n := v.Node
			d.c.RemovePod(v.UID())
			undo = append(undo, func() { d.c.Place(v, n) })
		}
		waiting = append(waiting, victims...)
		slices.SortStableFunc(waiting, byImportance)
	}
	evict(choice.Victims)
	guest := d.c.Visit(p, choice.Node)
	undo = append(undo, func() { d.c.Leave(guest) })

	for len(waiting) > 0 {
		v := waiting[0]
		waiting = waiting[1:]
		if v.Class.Controller == nil { // no controller replaces the pod
			k.homeless = append(k.homeless, v.Class.Priority)
			continue
		}
		replacement, before := cluster.NewPod(v.Class, v.Name(), v.UID()+"-replacement"), d.meter.Work
		n := d.Decide(replacement).Node
		left.Spend(d.meter.Work - before)
		if n == nil && !left.IsSpent() {
			next := d.preempt(replacement, left, "")
			n, k.evicted = next.Node, k.evicted+len(next.Victims)
			evict(next.Victims)
		}
		if n == nil {
			k.homeless = append(k.homeless, v.Class.Priority)
			continue
		}
		d.c.Place(replacement, n)
		undo = append(undo, func() { d.c.RemovePod(replacement.UID()) })
	}
	return k
}
