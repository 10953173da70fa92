// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
)

// renewal replaces the core, so that a journal that has become large or old can continue in another
// file. Each file contains all events of its core, so that it can be replayed independently, and
// old files can be deleted.
//
// The new core gets the objects known to the journal, a few at a time between decisions, and the
// events that arrive in the meantime. Once it has all of them and the old core is calm (Calm: no
// actions are in flight), the new core takes over. It then also gets the waiting states of the pods
// (cycle.Resumed), so that the change neither hastens nor delays any pod. If the old core does not
// become calm, decisions pause for up to calmWithin, repeatedly.
type renewal struct {
	next     *successor // nil: none in preparation
	calmBy   time.Time  // deadline of the wait for calm; zero: not waiting
	holdFrom time.Time  // start of the next wait for calm
	giveUp   time.Time  // the successor is dropped at this time if it has not taken over
	notUntil time.Time  // no renewal begins before this time; set when a renewal fails
}

const (
	// fillFor is the time for which the owner fills a new core before it does other work.
	fillFor = 10 * time.Millisecond
	// fillPause is the pause before the owner continues to fill a new core, while another goroutine
	// decodes objects.
	fillPause = time.Millisecond
	// calmWithin is the maximum pause of decisions, which delays pods.
	calmWithin   = 80 * time.Millisecond
	calmLook     = 5 * time.Millisecond // interval between checks for calm
	calmAgain    = 5 * time.Second      // time between two pauses, in which pods are decided
	renewalTakes = time.Minute          // time limit of a renewal after the new core has all objects
	renewalAgain = time.Minute          // pause after a failed renewal
)

// successor is a core being prepared to replace the current one.
type successor struct {
	core          *cycle.Core
	state         *journal.State // nil once it has been read to the end
	stop          context.CancelFunc
	notifications *delayedNotifications // the core's withheld notifications

	later   []cycle.Event  // events since the state was taken that the core has not got yet
	led     bool           // whether the core must get Led when it takes over
	actions []cycle.Action // actions withheld until the core takes over
}

// wantsRenewal reports whether the core should be replaced as soon as possible.
func (s *Scheduler) wantsRenewal(now time.Time) bool {
	return s.journal != nil && (s.renewal.next != nil || s.journal.Due() && !now.Before(s.renewal.notUntil))
}

// stepOrRenew gives the core an event, or continues a renewal instead of a Tick. While a renewal
// waits for calm, Ticks are skipped, so that no pod is decided. Ticks that are due only because of
// a renewal are skipped as well.
func (s *Scheduler) stepOrRenew(now time.Time, e cycle.Event) []cycle.Action {
	if _, is := e.(cycle.Tick); is && s.wantsRenewal(now) && (s.continueRenewal(now) || s.core.Wake(now).After(now)) {
		return nil
	}
	return s.stepCore(now, e)
}

// recordStep records an event and the resulting actions in the journal, and queues the event for a
// successor, if any.
func (s *Scheduler) recordStep(now time.Time, e cycle.Event, actions []cycle.Action) {
	if s.journal != nil {
		s.journal.Add(now, e, actions)
	}
	if s.renewal.next != nil {
		s.seenLater(now, e)
	}
}

// wakeOrRenew returns the time at which the next Tick is due. The loop calls it when the inbox is
// empty. While a renewal waits for calm, the core's own wake-up time is ignored, because the Tick
// would be skipped and the owner would spin.
func (s *Scheduler) wakeOrRenew(now time.Time) time.Time {
	s.publishSizes()
	wake := s.core.Wake(now)
	if s.wantsRenewal(now) {
		if renewal := s.renewalWake(now); !s.renewal.calmBy.IsZero() || renewal.Before(wake) {
			return renewal
		}
	}
	return wake
}

// renewalWake returns the time at which the owner must continue the renewal.
func (s *Scheduler) renewalWake(now time.Time) time.Time {
	r := &s.renewal
	switch {
	case r.next == nil:
		return now
	case !r.next.full():
		return now.Add(fillPause)
	case !r.calmBy.IsZero():
		return now.Add(calmLook)
	}
	return r.holdFrom
}

// continueRenewal continues or begins a renewal. It reports whether to skip this Tick, because the
// owner waits for calm or the new core has just got all objects or taken over.
//
// A renewal has three stages: the successor is created, it is filled, and it takes over when the
// old core is calm. If the old core does not become calm by itself, decisions pause for calmWithin,
// continue for calmAgain, and so on until giveUp. The successor is then dropped, and the old core
// and its file continue.
func (s *Scheduler) continueRenewal(now time.Time) bool {
	r := &s.renewal
	if r.next == nil {
		s.beginRenewal(now)
		return false
	}
	if r.giveUp.IsZero() {
		s.fillSuccessor(now)
		// r.next is nil if an unreadable state has ended the renewal.
		if r.next == nil || !r.next.full() {
			return false
		}
		r.holdFrom, r.giveUp = now, now.Add(renewalTakes)
		return true // events are handled before the new core takes over, which also takes time
	}

	switch {
	case s.core.Calm():
		s.renewCore(now)
		return true
	case r.calmBy.IsZero() && now.Before(r.holdFrom):
		return false
	case r.calmBy.IsZero():
		r.calmBy = now.Add(calmWithin)
	case !now.Before(r.giveUp):
		s.endRenewal(now)
		return false
	case !now.Before(r.calmBy):
		r.calmBy, r.holdFrom = time.Time{}, now.Add(calmAgain)
		return false
	}
	return true
}

// beginRenewal creates an empty core with a new random seed, which is recorded at the start of the
// next file.
func (s *Scheduler) beginRenewal(now time.Time) {
	o := s.made
	o.Seed = rand.Uint64()
	told := delayNotifications(&o)
	core, err := cycle.New(o)
	if err != nil { // unexpected, because these profiles were accepted before
		klog.Background().Error(err, "The journal cannot continue")
		s.renewal = renewal{notUntil: now.Add(renewalAgain)}
		return
	}
	ctx, stop := context.WithCancel(s.life.running)
	s.renewal = renewal{next: &successor{core: core, notifications: told, stop: stop, state: s.journal.Prepare(ctx, now, o.Seed)}}
}

// endRenewal drops the new core and its file. The current core and file continue unaffected.
func (s *Scheduler) endRenewal(now time.Time) {
	s.renewal.next.stop()
	s.journal.Discard()
	s.renewal = renewal{notUntil: now.Add(renewalAgain)}
}

// fillSuccessor gives the new core the events still missing, as far as time permits.
func (s *Scheduler) fillSuccessor(now time.Time) {
	for began := time.Now(); time.Since(began) < fillFor && s.feedSuccessor(now); {
	}
}

// feedSuccessor gives the new core the next missing event, and reports whether there was one. It
// returns false if no events are missing, or if another goroutine is still decoding the next
// object.
func (s *Scheduler) feedSuccessor(now time.Time) bool {
	n := s.renewal.next
	if n.state != nil {
		e, ready, err := n.state.Next()
		switch {
		case err != nil:
			klog.Background().Error(err, "The journal cannot continue")
			s.endRenewal(now)
			return false
		case !ready:
			return false
		case e != nil:
			s.giveSuccessor(now, e)
			return true
		}
		n.state = nil
	}

	// Events since the state was taken follow after the whole state.
	if len(n.later) == 0 {
		return false
	}
	e := n.later[0]
	n.later[0] = nil
	n.later = n.later[1:]
	s.giveSuccessor(now, e)
	return true
}

// giveSuccessor gives the new core an event, and records the event and the resulting actions in the
// next file. The actions are withheld until the core takes over. Led is withheld as well, so that
// the new core makes no decisions before that.
func (s *Scheduler) giveSuccessor(now time.Time, e cycle.Event) {
	n := s.renewal.next
	if _, is := e.(cycle.Led); is {
		n.led = true
		return
	}
	actions := n.core.Step(now, e)
	s.journal.AddNext(now, e, actions)
	for _, a := range actions {
		if _, is := a.(cycle.Compared); !is { // the previous core has emitted the comparison
			n.actions = append(n.actions, a)
		}
	}
}

// seenLater queues an event for the new core if it changes the state that the journal transfers:
// objects, lists, leadership, the wall clock and the configuration. For each event queued, up to
// two missing events are given to the new core, so that it catches up at any rate of events.
func (s *Scheduler) seenLater(now time.Time, e cycle.Event) {
	switch e.(type) {
	case cycle.Follows, cycle.Listing, cycle.Listed, cycle.Seen, cycle.Gone, cycle.Led, cycle.WallSet, cycle.Configured:
	default:
		return
	}
	s.renewal.next.later = append(s.renewal.next.later, e)
	if s.feedSuccessor(now) && s.renewal.next != nil {
		s.feedSuccessor(now)
	}
}

// full reports whether the new core has got the whole state and all later events.
func (n *successor) full() bool { return n.state == nil && len(n.later) == 0 }

// renewCore makes the new core take over. The order matters: the waiting states of the pods are
// saved before the old core is replaced, the journal switches to the new file before further events
// are recorded, and the new core gets the saved states last, after Led.
func (s *Scheduler) renewCore(now time.Time) {
	n := s.renewal.next
	s.renewal = renewal{}
	n.stop()

	saved := s.core.Save()
	n.core.Succeed(s.core)
	s.core = n.core
	s.journal.Turn()
	n.notifications.flush()
	s.loop.CarryOut(n.actions)
	if n.led {
		s.loop.Take(cycle.Led{})
	}
	s.loop.Take(saved)
	klog.Background().Info("The journal continues in another file", "took", time.Since(now))
}

// errStripped rejects a configuration that needs whole objects if the core has objects stripped for
// a journal. Only a restart lists the whole objects again.
var errStripped = errors.New("out-of-tree plugins and extenders need complete pods, which are not kept with --journal; restart the " +
	"scheduler")

// stripsObjects reports whether objects are stripped for a journal before the core gets them.
func (s *Scheduler) stripsObjects() bool { return s.journal != nil && s.journal.Strips() }

// checkStripped rejects profiles with out-of-tree plugins or extenders if objects are stripped.
func (s *Scheduler) checkStripped(profiles []cycle.Profile) error {
	if s.stripsObjects() && slices.ContainsFunc(profiles, func(p cycle.Profile) bool {
		return len(p.Extensions)+len(p.Outside)+len(p.Extenders) > 0
	}) {
		return errStripped
	}
	return nil
}
