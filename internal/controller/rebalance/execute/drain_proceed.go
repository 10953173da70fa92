// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// settle counts unconfirmed evictions once their pods are observed to terminate. It runs on each
// step while pods terminate, and at the end.
func (d *Drainer) settle() {
	if p := d.evicting; p != nil && d.leaves(p) {
		d.retryEviction()
	}
	d.unsure = slices.DeleteFunc(d.unsure, func(p *departure) bool {
		if !d.leaves(p) {
			return false
		}
		d.leave(p)
		return true
	})
}

// advance acts on the time and on observed state.
//
// The order matters: first the conditions that end the drain, then the stages in sequence, so that
// one step may pass through several.
func (d *Drainer) advance() {
	switch d.stage {
	case drained:
		return
	case closing:
		d.close()
		return
	}

	if end := d.deadline(); !end.IsZero() && !d.now.Before(end) {
		d.end(d.outOfTime())
		return
	}
	if d.stopping {
		d.end(interrupted)
		return
	}

	if d.stage == recovering {
		d.at = time.Time{}
		switch d.surges.follow(""); {
		case d.restoring():
		case (d.rolls || !d.options.OnlyRestore) && d.crowded():
		case d.options.OnlyRestore:
			d.end("")
			return
		default:
			d.ask(checking)
		}
	}

	if d.stage == cordoning && len(d.waiting) == 0 && d.cordoned() {
		d.ask(replanning)
	}
	if d.stage == emptying {
		d.at = time.Time{}
		// recover also undoes the surges of another killed run; then pods waiting for those
		// workloads continue.
		if at := d.surges.expires; !at.IsZero() && !d.now.Before(at) {
			d.recover()
			d.stale = true
		}
		d.surges.follow("")
		if at := d.surges.expires; !at.IsZero() {
			d.wake(at)
		}
		d.follow()
	}

	if d.stage == emptying {
		d.proceed()
	}
}

// proceed makes the next eviction, or waits for its preconditions.
//
// It does at most one thing: an eviction, a surge, or a request for a plan. Evictions in flight
// must have settled. Successors may be unscheduled, because their room is reserved, but before a
// new plan they must be scheduled as well.
func (d *Drainer) proceed() {
	if d.evicting != nil {
		d.retryEviction()
		return
	}
	for _, p := range d.unsure { // most requested evictions take effect immediately
		if until := p.asked.Add(landsFor); !p.asked.IsZero() && d.now.Before(until) {
			d.wake(until)
			return
		}
	}
	unplaced, raises := d.unplaced()
	if raises {
		return
	}
	// Pods waiting for something are skipped: their turn is in the next plan.
	for i := 0; i < len(d.due); {
		p := d.due[i]
		victim := d.cluster.pod(p.Namespace, p.Name, p.UID)
		switch {
		case p.Waits != "", d.now.Before(d.held[p.UID].until), d.stays[p.UID] != "", victim != nil && d.surges.surgeOf(victim) != nil:
			d.due = slices.Delete(d.due, i, i+1)
			continue
		// Replan only now, with a pod to evict: a stale plan does no harm while no pod can leave.
		case d.stale, d.now.Sub(d.planned) > plannedFor, victim == nil, victim.DeletionTimestamp != nil:
			if len(unplaced) == 0 {
				d.ask(replanning)
			}
			return
		}
		owner := rules.OwnerOf(victim)
		if d.mustWait(p, owner, unplaced) {
			i++
			continue
		}
		d.due = slices.Delete(d.due, i, i+1)
		d.begin(&departure{
			Departure: *p, owner: owner, known: d.cluster.podsOf(owner), grace: d.options.Grace, past: d.options.Delete,
		})
		return
	}
	if len(unplaced) == 0 {
		d.rest()
	}
}

// unplaced returns the departures with a successor that is expected to be scheduled soon, and
// whether a surge is about to begin.
func (d *Drainer) unplaced() (list []*departure, raises bool) {
	for _, p := range d.inProgress {
		// Pods on a silent node may never terminate, so other pods leave meanwhile.
		until := p.expected()
		switch {
		case p.ended || !p.follows() || until.IsZero() && d.cluster.holdsPods(p.From):
		case until.IsZero():
			list = append(list, p)
		case d.now.Before(until):
			d.wake(until)
			list = append(list, p)
		// The successor was not scheduled within landsFor, so the drain stops waiting for it and
		// replans.
		case d.planned.Before(until): // the next plan places the successor first
			d.stale = true
		}
	}
	for _, s := range d.surges.list {
		if until := s.since.Add(landsFor); s.step <= growing && !s.placed && d.now.Before(until) {
			d.wake(until)
			list, raises = append(list, s.departure), raises || s.step == raising
		}
	}
	return list, raises
}

// mustWait reports whether a pod must not leave before these successors are scheduled: the pods of
// a workload leave one after another, and successors without reserved room might get in the way.
func (d *Drainer) mustWait(p *rebalance.Departure, owner rules.Owner, unplaced []*departure) bool {
	switch {
	case len(unplaced) == 0:
		return false
	case len(unplaced) >= mostUnplaced, p.To == "", d.cluster.unreserved:
		return true
	}
	return slices.ContainsFunc(unplaced, func(o *departure) bool { return o.flight == nil || o.owner == owner })
}

// begin removes a pod by a surge or an eviction.
func (d *Drainer) begin(p *departure) {
	if p.follows() && p.To != "" {
		p.flight = flightOf(&p.Departure, p.owner.UID, d.wall())
	}
	if p.Surge != nil {
		d.surges.begin(p)
		return
	}
	// An unconfirmed earlier eviction of the same pod continues as this one.
	d.unsure = slices.DeleteFunc(d.unsure, func(before *departure) bool {
		if before.UID == p.UID {
			p.maybe, p.asked = true, before.asked
		}
		return before.UID == p.UID
	})
	d.evict(p)
}

// leaveRoom releases the reservations, unless a leaving pod still awaits its successor.
func (d *Drainer) leaveRoom() {
	if !slices.ContainsFunc(d.reserving, d.needsRoom) {
		d.freeRoom()
	}
}

// rest waits for budgets, for terminating pods and for their successors.
//
// The plan has no further pod that can leave now. rest replans after a change, after the deadline
// of a refusal, or after lastPause. Once there is nothing to wait for, the drain is over.
func (d *Drainer) rest() {
	d.leaveRoom()
	var waits []string
	var told []Held
	again, retry, left := d.planned.Add(lastPause), false, 0
	for i := range d.plan.Pods {
		p := &d.plan.Pods[i]
		if d.stays[p.UID] != "" {
			continue
		}
		left++
		victim := d.cluster.pod(p.Namespace, p.Name, p.UID)
		if victim == nil || victim.DeletionTimestamp != nil || d.surges.surgeOf(victim) != nil {
			continue
		}
		why := p.Waits
		if r, refused := d.held[p.UID]; d.now.Before(r.until) {
			again, why = pacing.Earlier(again, r.until), cmp.Or(why, r.why)
		} else if refused && why == "" {
			retry = true
		}
		if why != "" {
			h := d.heldBack(p, why)
			told = append(told, h)
			waits = append(waits, fmt.Sprintf("%s/%s: %s", p.Namespace, p.Name, h.Why))
		}
	}

	ending := slices.ContainsFunc(d.plan.Ending, func(k rebalance.Kept) bool { return d.cluster.pod(k.Namespace, k.Name, k.UID) != nil })
	switch {
	case d.stale, retry, left > 0 && len(waits) == 0 && len(d.inProgress)+len(d.surges.list) == 0, len(waits) > 0 && !d.now.Before(again):
		d.ask(replanning)
	case len(waits) > 0:
		d.wake(again)
		// The waiting pods are reported only if the message has changed.
		if text := strings.Join(waits, "\n"); text != d.waits {
			d.waits = text
			d.addAction(DrainProgress{Result: Withheld, Waiting: len(waits), Message: waits[0], Held: told})
		}
	case len(d.inProgress)+len(d.surges.list) == 0 && !ending:
		d.end(strings.Join(slices.Sorted(maps.Values(d.stays)), "; "))
		return
	case ending && d.options.Overdue > 0 && !d.now.Before(d.planned.Add(retryAfter)):
		d.ask(replanning)
	case ending && d.options.Overdue > 0:
		d.wake(d.planned.Add(retryAfter))
	}
	if d.stage == emptying {
		d.reportHeld()
	}
}

// reportHeld reports the pods that stay in Terminating on silent nodes, by node, whenever their
// number has grown. Like kubectl, the drain waits for these pods.
func (d *Drainer) reportHeld() {
	held := d.heldPods()
	for _, node := range slices.Sorted(maps.Keys(held)) {
		if len(held[node]) <= d.silent[node] {
			continue
		}
		d.silent[node] = len(held[node])
		a := DrainProgress{Result: Awaited, Node: node, Message: disruption.WhyHeld(node)}
		for _, p := range held[node] {
			a.Held = append(a.Held, Held{p, a.Message})
		}
		d.addAction(a)
	}
}

// heldPods returns the terminating pods on silent nodes by node.
func (d *Drainer) heldPods() map[string][]*rebalance.Departure {
	held, seen := map[string][]*rebalance.Departure{}, map[types.UID]bool{}
	add := func(p *rebalance.Departure) {
		if victim := d.cluster.pod(p.Namespace, p.Name, p.UID); victim != nil && !seen[p.UID] && d.cluster.holdsPods(p.From) {
			seen[p.UID] = true
			held[p.From] = append(held[p.From], p)
		}
	}
	for _, p := range d.inProgress {
		if p.left.IsZero() {
			add(&p.Departure)
		}
	}
	for _, k := range d.plan.Ending {
		add(&rebalance.Departure{Namespace: k.Namespace, Name: k.Name, UID: k.UID, From: k.Node})
	}
	return held
}
