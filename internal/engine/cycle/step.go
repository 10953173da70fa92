// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"time"

	"github.com/berth-k8s/berth/internal/quantity"
)

// Step processes an event and returns the resulting actions. now must not be before the time of the
// previous step. The next step reuses the returned slice, so the caller must carry out or copy the
// actions before calling Step again. A step decides at most one pod or one pod group: a Tick takes
// the next pod from the queue, and an Answered may continue an attempt suspended by an asynchronous
// question.
func (c *Core) Step(now time.Time, e Event) []Action {
	c.beginStep(now)
	clear(c.decisions.step)
	c.decisions.step = c.decisions.step[:0]
	if c.shadow != nil {
		c.shadow.DelayEvent(now, e, c.applyEvent)
	} else {
		c.applyEvent(e)
	}
	// Gates depend on the state of whole groups, which any of the calls above may have changed.
	c.podGroups.regateHeld()
	return c.actions
}

// applyEvent dispatches an event to its component.
func (c *Core) applyEvent(e Event) {
	switch e := e.(type) {
	case Follows:
		c.ready.followKinds(e.Kinds)

	// Objects from lists and watches.
	case Listing:
		c.mirrors[e.Kind].beginList()
	case Listed:
		c.mirrors[e.Kind].endList()
		delete(c.ready.unlisted, e.Kind)
	case Seen:
		c.mirrors[e.Kind].applySeen(quantity.BoundAll(e.Object))
	case Gone:
		c.mirrors[e.Kind].applyGone(quantity.BoundAll(e.Object))
	case Read:
		c.intake.readPod(quantity.BoundAll(e.Pod))

	// The role and the configuration of this scheduler.
	case Led:
		c.ready.leads = true
	case WallSet:
		c.ahead = e.Ahead
	case Configured:
		// The error is ignored: invalid profiles have no effect, and Check has already reported the
		// reason to the caller.
		_ = c.replaceProfiles(e.Profiles)
	case Resumed:
		c.resume(e)

	// Out-of-tree plugins, and the API server's responses to actions.
	case Activate:
		for _, uid := range e.Pods {
			c.queue.Activate(uid, c.now)
		}
	case Happened:
		c.queue.Happened(e.Event, c.now)
	case PermitAllowed:
		c.placements.permitAllowed(e)
	case PermitRejected:
		c.placements.permitRejected(e)
	case ClaimMade:
		c.placements.replacePlaceholder(e)

	case Answered:
		c.routeAnswer(e)
	case Tick:
		c.applyTick()
	}
}

// applyTick ends expired waits, wakes pods that recent events may help, and decides one pod or pod
// group.
//
// The order matters. Expired waits and reservations end first, because the release of their room is
// an event that may wake pods. Then the recorded events are passed to the queue, so that the same
// tick can pop a pod woken by them. A core that does not lead takes the same steps, but decides no
// pods. So its queue is up to date when it takes over.
func (c *Core) applyTick() {
	if c.now.Sub(c.flushed) >= flushEvery {
		c.flushed = c.now
		c.queue.Flush(c.now)
		c.events.objects = true
		c.dropUnused()
		c.placements.readOverdue()
	}

	c.placements.timeOut()
	c.nominations.clearGated()
	c.moveReservations.lapse()
	c.reserved.lapse()
	c.preemptions.wakeDelayed()
	c.preemptions.settle()
	c.preemptions.forgetCounted()
	c.events.flushEvents()
	if !c.ready.mayDecide() {
		return
	}

	if !c.ready.begun {
		c.ready.begun = true
		c.addAction(Ready{})
		// Before the core began to decide, it wrote no conditions of groups. Groups
		// scheduled before this scheduler began may also lack theirs.
		for _, g := range c.groups.Sorted() {
			c.podGroups.updateScheduled(g)
		}
	}

	switch item := c.queue.Pop(c.now); {
	case item == nil:
	// The popped pod represents its group; the other members are taken from their places in the
	// queue.
	case c.groupOf(item) != nil:
		c.attempts.scheduleGroup(c.groupOf(item), item)
	case item.Resizes():
		c.attempts.decideResize(item, nil, 0)
	default:
		c.moveReservations.useReservation(item)
		c.attempts.decidePod(item, nil, 0)
	}
}

// flushEvery is the interval between scans for pods stuck in the unschedulable queue. It can
// lengthen a wait of queue.MaxWait (five minutes) by half a minute, but a shorter interval would
// scan all pending pods more often. Upstream uses the same interval.
const flushEvery = 30 * time.Second

// dropUnused drops the cached state of large, possibly deleted pods.
func (c *Core) dropUnused() {
	c.cluster.DropUnused()
	for _, p := range c.profiles.byName {
		p.Decider.DropUnused()
		if p.failed.class != nil && p.failed.class.Bulk > 0 {
			p.failed = failure{}
		}
	}
}

// Wake returns the time at which the core needs a Tick if no event arrives. If work is pending, it
// returns now. The returned time is never later than the next flush, so a caller sleeping until
// then needs no additional timer.
func (c *Core) Wake(now time.Time) time.Time {
	if len(c.events.events) > 0 || c.events.objects || c.ready.mayDecide() && !c.ready.begun {
		return now
	}
	next := c.flushed.Add(flushEvery)
	if at, ok := c.Due(); ok && at.Before(next) {
		return at
	}
	return next
}

// Due returns the end of the next timed wait. A timed wait is a back-off, a wait at Permit, a wait
// for objects, a reservation, a wait before a preemption, or a wait for a budget to count a deleted
// victim. If ok is false, no timed wait is pending, and a Tick only scans for pods stuck in the
// unschedulable queue.
func (c *Core) Due() (next time.Time, ok bool) {
	// The deadlines share no common heap: there are few of them, and each component keeps its own.
	sooner := func(at time.Time) {
		if !ok || at.Before(next) {
			next, ok = at, true
		}
	}

	if at, ready := c.queue.NextReady(); ready && c.ready.mayDecide() {
		sooner(at)
	}
	for _, b := range c.placements.held {
		sooner(b.permit.nextTimeout())
	}

	if at := c.placements.conditions.nextDeadline(); !at.IsZero() {
		sooner(at)
	}
	if c.shadow != nil {
		if at, waits := c.shadow.NextDue(); waits {
			sooner(at)
		}
	}

	for _, r := range c.reserved.held {
		sooner(c.reserved.endOf(r))
	}
	for _, kept := range c.moveReservations.kept {
		if !kept.over {
			sooner(kept.until)
		}
	}

	if alarms := c.preemptions.alarms; len(alarms) > 0 {
		sooner(alarms[0].until)
	}
	if settling := c.preemptions.settling; len(settling) > 0 {
		sooner(settling[0].until)
	}
	if at := c.preemptions.recount; !at.IsZero() {
		sooner(at)
	}
	return next, ok
}
