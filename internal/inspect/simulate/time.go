// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"time"

	"github.com/berth-k8s/berth/internal/world/agenda"
)

// clock is virtual time with its agenda of calls. Time never goes back, and no call happens before
// its time.
//
// The world measures time as a [time.Duration] since its start, and so do results. Objects and
// cores use absolute times: start plus that duration.
type clock struct {
	start  time.Time     // start of the world, by the manifests' clock
	now    time.Duration // time since the start
	agenda agenda.Agenda
}

// time returns the world's current time.
func (c *clock) time() time.Time { return c.start.Add(c.now) }

// callAt schedules a call at a time since the start, or now if that has passed. Calls of one time
// run in the order of scheduling. The call must cope with changes made until it runs: its pod or
// node may no longer exist.
func (c *clock) callAt(at time.Duration, do func()) { c.agenda.Add(c.start.Add(max(at, c.now)), do) }

// course determines the next event and runs it. Events at one time happen in a fixed order: the
// agenda, node health, evictions, rebalances, and finally attempts to place pods, which see all
// earlier changes. In a cluster these race; here the order is fixed so that two runs of one
// scenario are identical.
//
//	next event = min(agenda, evictions, rebalances, scheduler's back-offs and waits, node health)
type course struct {
	*controllers
	*reactions

	passing func(elapsed time.Duration) // see [World.Watch]; nil without an observer
}

// nextEvent returns the time of the next event. Lease renewals of healthy nodes alone do not count
// as events, because they continue forever and change nothing: a world would never become quiet.
func (t *course) nextEvent() (at time.Duration, ok bool) {
	at, ok = t.nextDue()
	if next, there := t.health.nextCall(); there && (ok && next < at || !ok && t.health.isBusy()) {
		return next, true
	}
	return at, ok
}

// skipIdle skips the renewals of Leases before the next event or the given time, whichever is
// earlier.
func (t *course) skipIdle(until time.Duration) {
	if at, ok := t.nextDue(); ok {
		t.health.skipWaves(min(at, until))
	}
}

// nextDue returns the time of the next event outside of node health. An expired wait of the
// scheduler counts as due now.
func (t *course) nextDue() (at time.Duration, ok bool) {
	at, ok = t.nextChange()
	if due, waits := t.scheduler.core.Due(); waits {
		if tried := max(due.Sub(t.clock.start), t.clock.now); !ok || tried < at {
			return tried, true
		}
	}
	return at, ok
}

// nextChange is nextDue without attempts to place pods.
func (t *course) nextChange() (at time.Duration, ok bool) {
	if next, any := t.clock.agenda.Next(); any {
		at, ok = next.Sub(t.clock.start), true
	}
	for _, nextDue := range []func() (time.Duration, bool){t.evictions.nextDue, t.rebalances.nextDue} {
		if next, due := nextDue(); due && (!ok || next < at) {
			at, ok = next, true
		}
	}
	return at, ok
}

// Advance lets time pass until the given time since the start. Events happen, controllers replace
// departed pods, and all pending pods are tried.
func (w *World) Advance(until time.Duration) {
	w.scheduler.trySettled()
	for !w.allowed.mustStop() {
		w.course.skipIdle(until)
		at, ok := w.course.nextEvent()
		if !ok || at > until {
			break
		}
		w.course.runStep(at)
	}
	w.clock.now = max(w.clock.now, until)
}

// Watch sets the function that is called with the elapsed time before the events of each time
// happen. It replaces any earlier function.
func (w *World) Watch(passing func(elapsed time.Duration)) { w.course.passing = passing }

// runStep carries out the events of one time, and records a sample if any of them changed
// something.
func (t *course) runStep(at time.Duration) {
	t.clock.now = max(t.clock.now, at)
	if t.passing != nil {
		t.passing(t.clock.now)
	}

	// The cluster's log and the number of decisions reveal changes. A sample for each of the
	// thousands of Lease renewals would be useless.
	log := t.scheduler.c.Log.Len()
	t.clock.agenda.RunUntil(t.clock.time(), nil)
	t.health.runDue()
	t.evictions.evictDue(func(p *pod, cause string) {
		t.report.said.Evictions = append(t.report.said.Evictions,
			Eviction{Namespace: p.Namespace(), Name: p.Name, Node: p.NodeName, After: Seconds(t.clock.now), Taint: cause})
		t.controllers.departPod(p, ByTaint, cause)
	})
	t.rebalances.runDue()

	// Try pods last, after all changes of this time. Until then the core only collects the changes
	// as events.
	decided := t.scheduler.decided
	t.scheduler.trySettled()
	if log != t.scheduler.c.Log.Len() || decided != t.scheduler.decided || t.report.touched {
		t.report.touched = false
		s := t.nodes.sampleNodes()
		s.Running, s.Pending = t.scheduler.c.Pods(), t.scheduler.tried
		t.report.addSample(s)
	}
}

// OnlyTaints reports whether node health still has work, but all other activity has ended, such as
// drains and terminations of pods. Node health taints nodes at a limited rate, so with many failed
// nodes this phase may take hours of virtual time.
func (w *World) OnlyTaints() bool { return w.clock.agenda.Len() == 0 && w.health.isBusy() }

// AdvanceUntilQuiet lets time pass until no events remain, but at most until the given time. It
// ignores endlessly repeating events: repeated evictions of pods that return to a tainted node, or
// of replacements by a kubelet under pressure. It reports whether the world became quiet. In both
// cases, the clock stays at the last event.
func (w *World) AdvanceUntilQuiet(until time.Duration) bool {
	w.scheduler.trySettled()
	for !w.allowed.mustStop() {
		w.course.skipIdle(until)
		at, ok := w.course.nextEvent()
		onlyAgain := w.clock.agenda.Len() == w.kubelets.countRepeats()+w.controllers.repeats && !w.health.isBusy() &&
			len(w.rebalances.running) == 0 && w.evictions.onlyAgain()
		switch {
		case !ok || onlyAgain:
			return true
		case at > until:
			return false
		}
		w.course.runStep(at)
	}
	return false
}
