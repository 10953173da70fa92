package simulate

import (
	"time"

	"github.com/berth-k8s/berth/internal/world/agenda"
)

// clock is virtual time, and what is to happen in it. Time never goes back, and nothing happens
// before its time.
type clock struct {
	start  time.Time     // by the clock of the manifests
	now    time.Duration // since then
	agenda agenda.Agenda
}

// time is the time in the world.
func (c *clock) time() time.Time { return c.start.Add(c.now) }

// callAt schedules a call at a time from the beginning, or now if that has passed.
func (c *clock) callAt(at time.Duration, do func()) { c.agenda.Add(c.start.Add(max(at, c.now)), do) }

// runDue makes the calls that are due.
func (c *clock) runDue() { c.agenda.RunUntil(c.time(), nil) }

// nextEvent returns when the next event happens. If only renewals of Leases are left, there is
// none.
func (w *World) nextEvent() (at time.Duration, ok bool) {
	at, ok = w.nextDue()
	if next, there := w.health.nextCall(); there && (ok && next < at || !ok && w.health.isBusy()) {
		return next, true
	}
	return at, ok
}

// skipIdle leaves out the renewals of Leases until the next event, or until the given time, as long
// as they are all that happens.
func (w *World) skipIdle(until time.Duration) {
	if at, ok := w.nextDue(); ok {
		w.health.skipWaves(min(at, until))
	}
}

// nextDue returns when the next event happens that is none of node health's.
func (w *World) nextDue() (at time.Duration, ok bool) {
	at, ok = w.nextChange()
	if due, waits := w.scheduler.core.Due(); waits {
		if tried := max(due.Sub(w.clock.start), w.clock.now); !ok || tried < at {
			return tried, true
		}
	}
	return at, ok
}

// nextChange is the same but for attempts to place pods.
func (w *World) nextChange() (at time.Duration, ok bool) {
	if next, any := w.clock.agenda.Next(); any {
		at, ok = next.Sub(w.clock.start), true
	}
	if evicted, due := w.evictions.nextDue(); due && (!ok || evicted < at) {
		return evicted, true
	}
	return at, ok
}

// Advance lets time pass until the given time from the beginning: events happen, controllers
// replace pods that have gone, and these and all other pending pods are tried.
func (w *World) Advance(until time.Duration) {
	w.scheduler.trySettled()
	for !w.allowed.mustStop() {
		w.skipIdle(until)
		at, ok := w.nextEvent()
		if !ok || at > until {
			break
		}
		w.runStep(at)
	}
	w.clock.now = max(w.clock.now, until)
}

// Watch has passing called with the time in the world, as it passes.
func (w *World) Watch(passing func(elapsed time.Duration)) { w.passing = passing }

// runStep carries out the events of one time.
func (w *World) runStep(at time.Duration) {
	w.clock.now = max(w.clock.now, at)
	if w.passing != nil {
		w.passing(w.clock.now)
	}

	log := w.c.Log.Len()
	w.clock.runDue()
	w.health.runDue()
	w.evictions.evictDue(func(p *pod) {
		w.report.said.Evictions = append(w.report.said.Evictions, evictionOf(p, w.clock.now))
		w.controllers.departPod(p, ByTaint, p.due.Taint.ToString())
	})

	decided := w.scheduler.decided
	w.scheduler.trySettled()
	if log != w.c.Log.Len() || decided != w.scheduler.decided || w.report.touched {
		w.report.touched = false
		s := w.nodes.sampleNodes()
		s.Running, s.Pending = w.c.Pods(), w.scheduler.tried
		w.report.addSample(s)
	}
}

// OnlyTaints reports whether node health is still at work, and nothing else is under way, such as a
// drain or the end of a pod.
func (w *World) OnlyTaints() bool { return w.clock.agenda.Len() == 0 && w.health.isBusy() }

// AdvanceUntilQuiet lets time pass until nothing is left to happen except for evictions of pods
// that have returned to a node where they may not stay, or that their kubelet evicts again, and at
// most until then. It reports whether the world became quiet.
func (w *World) AdvanceUntilQuiet(until time.Duration) bool {
	w.scheduler.trySettled()
	for !w.allowed.mustStop() {
		w.skipIdle(until)
		at, ok := w.nextEvent()
		onlyAgain := w.clock.agenda.Len() == w.kubelets.countRepeats() && !w.health.isBusy() && w.evictions.onlyAgain()
		switch {
		case !ok || onlyAgain:
			return true
		case at > until:
			return false
		}
		w.runStep(at)
	}
	return false
}
