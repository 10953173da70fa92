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
// It does at most one thing: an eviction, a surge, or a request for a plan. Beforehand, everything
// assumed by the plan must have settled: evictions in flight, unscheduled successors, and surges
// with an unscheduled pod.
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
	for _, p := range d.inProgress {
		// Pods on a silent node may never terminate, so other pods leave meanwhile.
		until := p.expected()
		if p.ended || !p.follows() || until.IsZero() && d.cluster.holdsPods(p.From) {
			continue
		}
		switch {
		case until.IsZero():
			return
		case d.now.Before(until):
			d.wake(until)
			return
		// The successor was not scheduled within landsFor, so the drain stops waiting for it and
		// replans.
		case d.planned.Before(until): // the next plan places the successor first
			d.stale = true
		}
	}
	for _, s := range d.surges.list {
		if until := s.since.Add(landsFor); s.step <= growing && !s.placed && d.now.Before(until) {
			d.wake(until)
			return
		}
	}
	// Pods waiting for something are skipped: their turn is in the next plan.
	for ; d.next < len(d.plan.Pods); d.next++ {
		p := &d.plan.Pods[d.next]
		if p.Waits != "" || d.now.Before(d.held[p.UID].until) || d.stays[p.UID] != "" {
			continue
		}
		victim := d.cluster.pod(p.Namespace, p.Name, p.UID)
		if victim != nil && d.surges.surgeOf(victim) != nil {
			continue
		}
		// Replan only now, with a pod to evict: a stale plan does no harm while no pod can leave.
		if d.stale || d.now.Sub(d.planned) > plannedFor || victim == nil || victim.DeletionTimestamp != nil {
			d.ask(replanning)
			return
		}
		d.next++
		d.begin(&departure{
			Departure: *p, owner: rules.OwnerOf(victim), known: d.cluster.podsOf(rules.OwnerOf(victim)),
			grace: d.options.Grace, past: d.options.Delete,
		})
		return
	}
	d.rest()
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

// leaveRoom releases the reservation, unless the leaving pod still awaits its successor.
func (d *Drainer) leaveRoom() {
	if p := d.reserving; p != nil && (p.ended || p.at.IsZero() && p != d.evicting && !d.surges.places(p)) {
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
