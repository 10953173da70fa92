// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Preempt finds the node with the cheapest victims for a pod that fits nowhere. Call it right after
// a Decide that found no node. It does not change the cluster.
func (d *Decider) Preempt(p *cluster.Pod) Preemption {
	found := d.preempt(p, effort.NewBudget(d.limits, d.c), d.profile.LookAhead)
	if len(found.rivals) > 0 {
		return d.lookAhead(p, found)
	}
	return found
}

// preempt is Preempt with bounded effort. It lists the nodes between which the look-ahead chooses.
func (d *Decider) preempt(p *cluster.Pod, left *effort.Budget, ahead plugins.LookAhead) Preemption {
	r, pl := d.cache.rankingFor(p)
	before := left.Left
	t, usable := &hypothesis{r: r, p: p, profile: d.profile}, pl.way == ranked
	if usable && len(pl.asked) > 0 {
		t.questions, usable = pl.questionsFor(d.c, p)
	}
	if !usable {
		defer func() { d.meter.Work += before - left.Left }()
		return d.plain.preempt(p, d.plain.evaluateInAttempt(p), left)
	}
	var nominated *plugins.Rejection
	if n := d.c.Node(p.Nominated); n != nil {
		nominated = t.judgeAsIs(n)
	}
	if message := whyIneligible(d.c, p, nominated); message != "" {
		return Preemption{Message: message, Ineligible: true}
	}

	if d.c.Len() > 0 && !t.asks() && !d.c.HasLower(p.Class.Priority) && d.c.Nominations() == 0 && !r.reasons.merged {
		return r.withoutVictims()
	}
	known, budgets := d.cache.candidatesFor(r), newBudgets(d.c, d.profile, p)
	if own := d.c.Nominated(p.UID()); own != nil {
		// The cost of the nominated node differs between p, which does not take room from itself,
		// and the other pods of the class. It is recomputed now and after the attempt.
		if n := d.c.Node(own.Nominated); n != nil {
			known.forgetNode(n)
			defer func() { known.forgetNode(n) }()
		}
	}
	if t.asks() {
		if asked := askCandidates(known, t, budgets, left); asked != nil {
			if best := asked.cheapestNode(d.tie, d.preferredNode(p)); best != none {
				rivals := rivalsOf(ahead, best, len(asked.byNode), asked.costOf,
					func(node int32) bool { return !asked.isOut(node) && asked.suits(node) })
				return t.preemptionOn(best, budgets, rivals)
			}
		}
		// Use separate candidates, because the reasons why preemption does not help differ between
		// the pods of a class.
		return d.preemptFrom(&candidates{rebuilds: r.rebuilds}, t, budgets, effort.NewBudget(d.limits, d.c), ahead)
	}
	return d.preemptFrom(known, t, budgets, left, ahead)
}

// withoutVictims is the result of a preemption in a cluster without less important pods, in which
// no node needs to be examined.
func (r *ranking) withoutVictims() Preemption {
	resolvable := 0
	count := func(rejection *plugins.Rejection, nodes int32) {
		if rejection != nil && !rejection.Unresolvable {
			resolvable += int(nodes)
		}
	}
	for _, g := range r.groups {
		plugin, rejection := r.judgeGroup(g)
		count(rejection, g.ok)
		for id, nodes := range g.rejected {
			if own := &r.reasons.list[id]; r.plan.precedes(plugin, own) {
				count(rejection, nodes)
			} else {
				count(own.rejection, nodes)
			}
		}
	}

	reasons := map[string]int{}
	if resolvable > 0 {
		reasons[noVictims.Reasons[0]] = resolvable
	}
	if others := r.ix.c.Len() - resolvable; others > 0 {
		reasons[notHelpful] = others
	}
	return Preemption{Message: noneAvailable(r.ix.c.Len(), reasons)}
}

// preemptFrom refreshes the candidates and picks the cheapest one.
func (d *Decider) preemptFrom(known *candidates, t *hypothesis, b *budgets, left *effort.Budget, ahead plugins.LookAhead) Preemption {
	known.refreshCosts(t, b, left)
	// Devices for the pod may be about to be released.
	if node := slices.IndexFunc(known.byNode, func(k cost) bool { return k.why != nil && k.why.awaits }); node >= 0 {
		return awaitDevices(d.c.Nodes[node])
	}
	best := known.cheapestNode(d.tie, d.preferredNode(t.p))
	if best == none && len(known.unknown) > 0 {
		return Preemption{Message: ErrTooLong.Error(), Err: ErrTooLong}
	}
	if best == none {
		reasons, names := known.countReasons(t.r)
		return Preemption{Message: noneAvailable(d.c.Len(), reasons), Plugins: names}
	}
	rivals := rivalsOf(ahead, best, len(known.byNode), func(node int32) *cost { return &known.byNode[node] }, nil)
	return t.preemptionOn(best, b, rivals)
}

// preemptionOn returns the victims on a candidate and the number of victims that violate a budget,
// and the same for its rivals.
func (t *hypothesis) preemptionOn(node int32, b *budgets, rivals []int32) Preemption {
	found, _ := t.victimsOn(t.r.ix.c.Nodes[node], b)
	chosen := found.preemption()
	for _, rival := range rivals {
		if other, why := t.victimsOn(t.r.ix.c.Nodes[rival], b); why == nil {
			chosen.rivals = append(chosen.rivals, other.preemption())
		}
	}
	return chosen
}

// Diagnose explains why no node can take the pod. Call it right after a Decide that found no node.
func (d *Decider) Diagnose(p *cluster.Pod) *Failure {
	if d.c.Len() == 0 { // no nodes to rank
		return d.plain.evaluateInAttempt(p).Failure()
	}
	r, pl := d.cache.rankingFor(p)
	if pl.way != ranked || len(pl.asked) > 0 {
		return d.plain.evaluateInAttempt(p).Failure()
	}

	held, _ := r.withholdNodes(p, questions{}, true)
	defer func() {
		for _, node := range held {
			r.regroupNode(node)
		}
	}()

	if r.reasons.merged {
		return d.plain.evaluateInAttempt(p).Failure()
	}
	f := &Failure{Nodes: d.c.Len(), Reasons: map[string]int{}}
	withheld := countByReason(r, held)

	for i, g := range r.groups {
		plugin, rejection := r.judgeGroup(g)
		for id, nodes := range g.rejected {
			if nodes == 0 {
				continue
			}
			own := &r.reasons.list[id]
			if final := withheld[groupReason{int32(i), id}]; final < int(nodes) && r.plan.precedes(plugin, own) {
				f.addRejection(plugin, rejection, int(nodes)-final)
				nodes = int32(final)
			}
			if nodes > 0 {
				f.addRejection(own.plugin, own.rejection, int(nodes))
			}
		}
		if g.ok > 0 && rejection != nil {
			f.addRejection(plugin, rejection, int(g.ok))
		}
	}

	return f
}

type groupReason struct {
	group  int32
	reason int
}

// countByReason counts the nodes removed by withholdNodes, by group and reason. All plugins have
// judged these nodes with the pods nominated to them, so the rejection of their group, which
// ignores nominated pods, does not apply.
func countByReason(r *ranking, held []int32) map[groupReason]int {
	if r.plan.guestsInRoom() || len(held) == 0 {
		return nil
	}
	said := map[groupReason]int{}
	for _, node := range held {
		said[groupReason{r.groupAt(node), reasonIn(r.bucket[node])}]++
	}
	return said
}
