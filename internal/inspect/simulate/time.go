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

// course says what happens next, and has it happen. What is due at one time happens in a fixed
// order: the agenda, node health, evictions, and then attempts to place pods, which so see all of
// it.
type course struct {
	clock       *clock
	report      *report
	nodes       *nodes
	scheduler   *scheduler
	health      *health
	evictions   *evictions
	controllers *controllers

	passing func(elapsed time.Duration) // see [World.Watch]; nil: nobody does
}

// nextEvent returns when the next event happens. If only renewals of Leases are left, there is
// none.
func (t *course) nextEvent() (at time.Duration, ok bool) {
	at, ok = t.nextDue()
	if next, there := t.health.nextCall(); there && (ok && next < at || !ok && t.health.isBusy()) {
		return next, true
	}
	return at, ok
}

// skipIdle leaves out the renewals of Leases until the next event, or until the given time, as long
// as they are all that happens.
func (t *course) skipIdle(until time.Duration) {
	if at, ok := t.nextDue(); ok {
		t.health.skipWaves(min(at, until))
	}
}

// nextDue returns when the next event happens that is none of node health's.
func (t *course) nextDue() (at time.Duration, ok bool) {
	at, ok = t.nextChange()
	if due, waits := t.scheduler.core.Due(); waits {
		if tried := max(due.Sub(t.clock.start), t.clock.now); !ok || tried < at {
			return tried, true
		}
	}
	return at, ok
}

// nextChange is the same but for attempts to place pods.
func (t *course) nextChange() (at time.Duration, ok bool) {
	if next, any := t.clock.agenda.Next(); any {
		at, ok = next.Sub(t.clock.start), true
	}
	if evicted, due := t.evictions.nextDue(); due && (!ok || evicted < at) {
		return evicted, true
	}
	return at, ok
}

// Advance lets time pass until the given time from the beginning: events happen, controllers
// replace pods that have gone, and these and all other pending pods are tried.
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

// Watch has passing called with the time in the world, as it passes.
func (w *World) Watch(passing func(elapsed time.Duration)) { w.course.passing = passing }

// runStep carries out the events of one time.
func (t *course) runStep(at time.Duration) {
	t.clock.now = max(t.clock.now, at)
	if t.passing != nil {
		t.passing(t.clock.now)
	}

	log := t.scheduler.c.Log.Len()
	t.clock.runDue()
	t.health.runDue()
	t.evictions.evictDue(func(p *pod) {
		t.report.said.Evictions = append(t.report.said.Evictions, evictionOf(p, t.clock.now))
		t.controllers.departPod(p, ByTaint, p.due.Taint.ToString())
	})

	decided := t.scheduler.decided
	t.scheduler.trySettled()
	if log != t.scheduler.c.Log.Len() || decided != t.scheduler.decided || t.report.touched {
		t.report.touched = false
		s := t.nodes.sampleNodes()
		s.Running, s.Pending = t.scheduler.c.Pods(), t.scheduler.tried
		t.report.addSample(s)
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
		w.course.skipIdle(until)
		at, ok := w.course.nextEvent()
		onlyAgain := w.clock.agenda.Len() == w.kubelets.countRepeats() && !w.health.isBusy() && w.evictions.onlyAgain()
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
