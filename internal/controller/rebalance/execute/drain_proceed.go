package execute

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// answered handles the answer to a request. Late answers, to requests that are over, are ignored.
func (d *Drainer) answered(e Answered) {
	if name, ok := d.waiting[e.Ticket]; ok {
		delete(d.waiting, e.Ticket)
		if e.Outcome != OK {
			d.end(fmt.Sprintf("node %s cannot be cordoned: %s", name, e.Message))
			return
		}
		d.do(DrainTold{Result: Cordoned, Node: name, Message: "cordoned"})
		return
	}
	if d.surges.answered(e) {
		return
	}
	if d.evicting == nil || e.Ticket != d.ticket {
		return
	}
	p := d.evicting
	d.evicting = nil
	switch {
	// An eviction whose answer was lost was made after all.
	case e.Outcome == OK, p.maybe && e.Outcome == NotFound:
		d.accepted(p)
		d.next++
	case e.Outcome == NotFound: // it left by itself
		d.stale = true
	// It may have been made. The same request is repeated, which is harmless: it has the pod's UID.
	case e.Outcome == Failed && d.failed+1 < mostFailed:
		p.maybe = true
		d.failed++
		d.evicting, d.ticket, d.retry = p, 0, d.now.Add(firstPause<<d.failed)
		return
	// Others may be evicted meanwhile: a responder may take minutes.
	case e.Outcome == Asked:
		if p.asked.IsZero() {
			p.asked = d.now
		}
		d.unsure = append(d.unsure, p)
		d.refused[p.UID] = putOff{d.now.Add(retryAfter), e.Message}
		d.next++
	default:
		if p.maybe {
			d.unsure = append(d.unsure, p)
		}
		if e.Outcome != Busy {
			d.end(fmt.Sprintf("error when evicting %s/%s: %s", p.Namespace, p.Name, e.Message))
			return
		}
		d.refused[p.UID] = putOff{d.now.Add(max(retryAfter, min(e.RetryAfter, lastPause))), e.Message}
		d.next++
	}
	d.failed = 0
}

// accepted follows a pod whose eviction was accepted. From here on its successor is looked for.
func (d *Drainer) accepted(p *departure) {
	p.at = d.now
	delete(d.refused, p.UID)
	d.count++
	d.waits = ""
	d.under = append(d.under, p)
	result := Evicted
	if p.ahead {
		result = Replaced
	}
	d.do(DrainTold{Result: result, Pod: &p.Departure})
}

// leaves reports whether a pod has been seen to terminate, or to be gone.
func (d *Drainer) leaves(p *departure) bool {
	victim := d.cluster.pod(p.Namespace, p.Name, p.UID)
	return victim == nil || victim.DeletionTimestamp != nil
}

// settle counts the evictions whose answers were lost, and those that were asked for, once their
// pods are seen to leave. It is called at each step while pods leave, and at the end.
func (d *Drainer) settle() {
	if p := d.evicting; p != nil && d.ticket == 0 && d.leaves(p) {
		d.evicting, d.failed = nil, 0
		d.accepted(p)
		d.next++
	}
	d.unsure = slices.DeleteFunc(d.unsure, func(p *departure) bool {
		if !d.leaves(p) {
			return false
		}
		d.accepted(p)
		return true
	})
}

// advance does what follows from the time, or from what was seen.
//
// The order matters: what ends the drain comes first, then stages in the order in which they follow
// each other, so that one step may pass through several.
func (d *Drainer) advance() {
	switch d.stage {
	case drained:
		return
	case closing:
		d.at = time.Time{}
		d.surges.follow(d.stopped)
		if len(d.surges.list) == 0 {
			d.end(d.stopped)
		}
		return
	}

	if end := d.deadline(); !end.IsZero() && !d.now.Before(end) {
		d.end(d.outOfTime())
		return
	}
	// An eviction in flight is waited for, so that the result counts it.
	if d.stopping && (d.evicting == nil || d.ticket == 0) {
		d.end(interrupted)
		return
	}

	if d.stage == recovering {
		d.at = time.Time{}
		switch d.surges.follow(""); {
		case len(d.surges.list) > 0:
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
		d.surges.follow("")
		d.follow()
	}

	if d.stage == emptying {
		d.proceed()
	}
}

// outOfTime is what the timeout stops. A node that is empty by then is drained, whatever has become
// of the successors, if these may stay pending. It returns what the drain ends with, or "" if it is
// as good as done.
func (d *Drainer) outOfTime() string {
	left, ending := d.remaining()
	if d.stage == listing || d.stage == recovering || d.stage == checking || d.stage == cordoning || left+ending > 0 {
		return fmt.Sprintf("not done within %s", d.options.Timeout)
	}
	for _, p := range d.under {
		switch {
		case p.ended:
		case !d.options.AllowPending:
			return fmt.Sprintf("not done within %s: %s/%s: %s", d.options.Timeout, p.Namespace, p.Name, homeless(d.successorOf(p)))
		default:
			d.leavePending(p, d.successorOf(p))
		}
	}
	return ""
}

// remaining counts the pods that are still to be evicted, and those that have not ended yet. Each
// pod counts once, also if it is in the plan and has been evicted since.
func (d *Drainer) remaining() (left, ending int) {
	if d.plan == nil {
		return 0, 0
	}
	count := func(namespace, name string, uid types.UID) {
		switch victim := d.cluster.pod(namespace, name, uid); {
		case victim == nil:
		case victim.DeletionTimestamp == nil:
			left++
		default:
			ending++
		}
	}

	seen := map[types.UID]bool{}
	for i := range d.plan.Pods {
		p := &d.plan.Pods[i]
		seen[p.UID] = true
		count(p.Namespace, p.Name, p.UID)
	}

	for _, k := range d.plan.Ending {
		seen[k.UID] = true
		count(k.Namespace, k.Name, k.UID)
	}

	for _, p := range d.under {
		if !seen[p.UID] && p.left.IsZero() {
			count(p.Namespace, p.Name, p.UID)
		}
	}
	return left, ending
}

// proceed makes the next eviction, or waits for what prevents it.
//
// One thing is done at most: an eviction, a surge, or a request for a plan. Before that, everything
// has to have settled that the plan has counted with: evictions in flight, successors without a
// node, surges whose pod has no node.
func (d *Drainer) proceed() {
	if p := d.evicting; p != nil {
		if d.ticket == 0 && !d.now.Before(d.retry) {
			d.evict(p)
		} else if d.ticket == 0 {
			d.wake(d.retry)
		}
		return
	}
	for _, p := range d.unsure { // most pods leave at once when they are asked to
		if until := p.asked.Add(landsFor); !p.asked.IsZero() && d.now.Before(until) {
			d.wake(until)
			return
		}
	}
	for _, p := range d.under {
		if p.ended || !p.follows() {
			continue
		}
		until := p.expected()
		switch {
		case until.IsZero():
			return
		case d.now.Before(until):
			d.wake(until)
			return
		// It has not come within landsFor, and the drain does not stand still for it; but the plan
		// at hand takes its room for used.
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
	// Pods are passed over that wait for something: they get their turn with the next plan.
	for ; d.next < len(d.plan.Pods); d.next++ {
		p := &d.plan.Pods[d.next]
		if p.Waits != "" || d.now.Before(d.refused[p.UID].until) || d.stays[p.UID] != "" {
			continue
		}
		victim := d.cluster.pod(p.Namespace, p.Name, p.UID)
		if victim != nil && d.surges.of(victim) != nil {
			continue
		}
		// It is asked only now, when there is a pod to evict: a plan that is stale while nothing
		// can leave does no harm.
		if d.stale || d.now.Sub(d.planned) > plannedFor || victim == nil || victim.DeletionTimestamp != nil {
			d.ask(replanning)
			return
		}
		known := map[types.UID]bool{}
		for uid := range d.cluster.byOwner[rules.OwnerOf(victim)] {
			known[uid] = true
		}
		next := &departure{Departure: *p, owner: rules.OwnerOf(victim), known: known}
		if next.follows() && p.To != "" {
			// Only what the scheduler has to know is filled in.
			next.room = &Flight{
				Move: rebalance.Move{Namespace: p.Namespace, Name: p.Name, UID: p.UID, To: p.To,
					Surge: p.Surge, Cost: rebalance.Cost{GraceSeconds: p.Grace}},
				OwnerUID: next.owner.UID, Begun: metav1.NewTime(d.wall()),
			}
		}
		if p.Surge != nil {
			d.next++
			d.room = next
			d.surges.begin(next)
			return
		}
		// An eviction of the same pod that was not settled goes on as this one.
		d.unsure = slices.DeleteFunc(d.unsure, func(before *departure) bool {
			if before.UID == next.UID {
				next.maybe, next.asked = before.asked.IsZero(), before.asked
			}
			return before.UID == next.UID
		})
		d.evict(next)
		return
	}
	d.rest()
}

// evict requests the eviction of a pod, for the first time or again.
func (d *Drainer) evict(p *departure) {
	d.evicting, d.ticket = p, d.nextTicket()
	if p.room != nil {
		d.room = p
	}
	d.do(Evict{
		Ticket: d.ticket, Namespace: p.Namespace, Name: p.Name, UID: p.UID, Grace: d.options.Grace, Delete: d.options.Delete, Room: p.room,
	})
}

// freeRoom has no room kept any longer, unless the pod that leaves is still to be succeeded.
func (d *Drainer) freeRoom() {
	if p := d.room; p != nil && (p.ended || p.at.IsZero() && p != d.evicting && !d.surges.places(p)) {
		d.room = nil
		d.do(FreeRoom{Room: p.room})
	}
}

// rest waits for budgets, for pods that terminate and for their successors.
//
// The plan has no other pod that could leave now. It is made again when something has changed, when
// a refusal's time is up, or after lastPause; if nothing is left to wait for, the drain is over.
func (d *Drainer) rest() {
	d.freeRoom()
	var waits []string
	var held []Held
	again, retry, left := d.planned.Add(lastPause), false, 0
	for i := range d.plan.Pods {
		p := &d.plan.Pods[i]
		if d.stays[p.UID] != "" {
			continue
		}
		left++
		victim := d.cluster.pod(p.Namespace, p.Name, p.UID)
		if victim == nil || victim.DeletionTimestamp != nil || d.surges.of(victim) != nil {
			continue
		}
		why := p.Waits
		if r, refused := d.refused[p.UID]; d.now.Before(r.until) {
			again, why = earliest(again, r.until), cmp.Or(why, r.why)
		} else if refused && why == "" {
			retry = true
		}
		if why != "" {
			h := d.heldBack(p, why)
			held = append(held, h)
			waits = append(waits, fmt.Sprintf("%s/%s: %s", p.Namespace, p.Name, h.Why))
		}
	}

	ending := slices.ContainsFunc(d.plan.Ending, func(k rebalance.Kept) bool { return d.cluster.pod(k.Namespace, k.Name, k.UID) != nil })
	switch {
	case d.stale, retry, left > 0 && len(waits) == 0 && len(d.under)+len(d.surges.list) == 0, len(waits) > 0 && !d.now.Before(again):
		d.ask(replanning)
	case len(waits) > 0:
		d.wake(again)
		// What is waited for is said when it changes, not at each look.
		if told := strings.Join(waits, "\n"); told != d.waits {
			d.waits = told
			d.do(DrainTold{Result: Withheld, Waiting: len(waits), Message: waits[0], Held: held})
		}
	case len(d.under)+len(d.surges.list) == 0 && !ending:
		d.end(strings.Join(slices.Sorted(maps.Values(d.stays)), "; "))
	case ending && d.options.Overdue > 0 && !d.now.Before(d.planned.Add(retryAfter)):
		d.ask(replanning)
	case ending && d.options.Overdue > 0:
		d.wake(d.planned.Add(retryAfter))
	}
}

// end ends the drain, once surges are put back; why is what stopped it, or "". It may be called
// again from closing, once the surges are put back.
func (d *Drainer) end(why string) {
	if len(d.surges.list) > 0 {
		d.stage, d.stopped = closing, why
		d.surges.follow(why)
		return
	}
	d.stage = drained
	d.settle()
	d.freeRoom()
	d.withdraw()
	left, ending := d.remaining()
	d.do(DrainDone{Evicted: d.count, Left: left, Ending: ending, Stopped: why})
}

// withdraw takes back what was asked for the pods that stay. Otherwise responders would evict pods
// after the command has ended.
func (d *Drainer) withdraw() {
	pods := map[types.UID]bool{}
	for _, p := range d.unsure {
		if !p.asked.IsZero() {
			pods[p.UID] = true
		}
	}
	if len(pods) > 0 {
		d.do(Withdraw{Pods: pods})
	}
}

// earliest returns the earlier of two times.
func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
