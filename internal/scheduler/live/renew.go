package live

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

// renewal is the change to another core, with which a journal that has become large or old
// continues in another file: each file has everything that its core was given, so that it can be
// replayed alone, and the oldest can be deleted. The new core is given the objects that the journal
// knows, a few at a time between decisions, and whatever is seen meanwhile. When it has them all
// and nothing is under way, it is given how pods wait (cycle.Resumed), so that no pod is tried
// sooner or later because of the change, and takes over. To reach that nothing is under way, no pod
// is decided for up to calmWithin, again and again.
type renewal struct {
	next     *successor // nil: none is being made
	calmBy   time.Time  // until when to wait for calm; zero: not waiting
	holdFrom time.Time  // when to wait for calm again
	giveUp   time.Time  // when to do without next
	notUntil time.Time  // after a renewal that found no calm
}

const (
	// fillFor is how long the owner gives a new core objects before it looks for other work.
	fillFor = 10 * time.Millisecond
	// fillPause is when to look again for objects that are not decoded yet.
	fillPause = time.Millisecond
	// calmWithin is how long pods may have to wait for a renewal.
	calmWithin   = 80 * time.Millisecond
	calmLook     = 5 * time.Millisecond // how often to look whether nothing is under way
	calmAgain    = 5 * time.Second      // between two waits for calm, in which pods are decided
	renewalTakes = time.Minute          // with all objects known
	renewalAgain = time.Minute          // before another renewal is begun after one that failed
)

// successor is a core that is to replace the current one.
type successor struct {
	core  *cycle.Core
	state *journal.State // nil: read to the end
	stop  context.CancelFunc
	told  *toldLater // what the core would tell

	later   []cycle.Event  // seen since the state
	led     bool           // it leads once it has taken over
	actions []cycle.Action // not carried out yet
}

// wantsRenewal reports whether the core is to be replaced as soon as possible.
func (s *Scheduler) wantsRenewal(now time.Time) bool {
	return s.journal != nil && (s.renewal.next != nil || s.journal.Due() && !now.Before(s.renewal.notUntil))
}

// renewalWake is when the owner has to go on with a renewal that is due.
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

// renewIfDue goes on with a renewal if one is due. It reports whether this tick has to be skipped:
// calm is waited for, or the new core has only just taken over.
//
// Its states, in order: a successor is begun; it is filled; nothing is under way (Calm) and it
// takes over. If that does not happen by itself, decisions pause for calmWithin, then go on for
// calmAgain, and so on until giveUp, when the successor is dropped and the old file goes on.
func (s *Scheduler) renewIfDue(now time.Time) bool {
	if !s.wantsRenewal(now) {
		return false
	}
	r := &s.renewal
	if r.next == nil {
		s.beginRenewal(now)
		return false
	}
	if !r.next.full() {
		s.fillSuccessor(now)
		// The first is a state that could not be read, which has ended the renewal.
		if r.next == nil || !r.next.full() {
			return false
		}
		r.holdFrom, r.giveUp = now, now.Add(renewalTakes)
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

// beginRenewal makes a new core that knows nothing yet. It has a seed of its own, which its file
// begins with.
func (s *Scheduler) beginRenewal(now time.Time) {
	o := s.made
	o.Seed = rand.Uint64()
	told := tellLater(&o)
	core, err := cycle.New(o)
	if err != nil { // these profiles were accepted before
		klog.Background().Error(err, "The journal does not go on")
		s.renewal = renewal{notUntil: now.Add(renewalAgain)}
		return
	}
	ctx, stop := context.WithCancel(s.life.running)
	s.renewal = renewal{next: &successor{core: core, told: told, stop: stop, state: s.journal.Prepare(ctx, now, o.Seed)}}
}

// endRenewal drops the new core and its file. The current ones go on as if nothing had been tried.
func (s *Scheduler) endRenewal(now time.Time) {
	s.renewal.next.stop()
	s.journal.Discard()
	s.renewal = renewal{notUntil: now.Add(renewalAgain)}
}

// fillSuccessor gives the new core what it does not know yet, as far as there is time.
func (s *Scheduler) fillSuccessor(now time.Time) {
	for began := time.Now(); time.Since(began) < fillFor && s.tellSuccessor(now); {
	}
}

// tellSuccessor gives the new core an event that it does not know yet. It reports whether there was
// one: not if all was given, and not if the next object is still being decoded, which another
// goroutine does.
func (s *Scheduler) tellSuccessor(now time.Time) bool {
	n := s.renewal.next
	if n.state != nil {
		e, ready, err := n.state.Next()
		switch {
		case err != nil:
			klog.Background().Error(err, "The journal does not go on")
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

	// What has happened since the state was taken comes after all of it.
	if len(n.later) == 0 {
		return false
	}
	e := n.later[0]
	n.later[0] = nil
	n.later = n.later[1:]
	s.giveSuccessor(now, e)
	return true
}

// giveSuccessor gives the new core an event and records both in the next file. Its actions are
// kept: whatever it would do is for the time when it has taken over. Led is kept too, since a core
// that does not lead decides nothing.
func (s *Scheduler) giveSuccessor(now time.Time, e cycle.Event) {
	n := s.renewal.next
	if _, is := e.(cycle.Led); is {
		n.led = true
		return
	}
	actions := n.core.Step(now, e)
	s.journal.AddNext(now, e, actions)
	for _, a := range actions {
		if _, is := a.(cycle.Compared); !is { // the core before it has compared that pod
			n.actions = append(n.actions, a)
		}
	}
}

// seenLater notes an event for the new core, if it is about what the journal knows. For each, the
// new core is given two: it catches up however many come.
func (s *Scheduler) seenLater(now time.Time, e cycle.Event) {
	switch e.(type) {
	case cycle.Follows, cycle.Listing, cycle.Listed, cycle.Seen, cycle.Gone, cycle.Led, cycle.WallSet, cycle.Configured:
	default:
		return
	}
	s.renewal.next.later = append(s.renewal.next.later, e)
	if s.tellSuccessor(now) && s.renewal.next != nil {
		s.tellSuccessor(now)
	}
}

// full reports whether the new core knows all objects.
func (n *successor) full() bool { return n.state == nil && len(n.later) == 0 }

// renewCore has the new core take over. The order matters: what the old core knows of how pods wait
// is saved before it is succeeded, the journal turns to the new file before anything is recorded
// for the new core, and the saved state comes last, when the new core leads.
func (s *Scheduler) renewCore(now time.Time) {
	n := s.renewal.next
	s.renewal = renewal{}
	n.stop()

	saved := s.core.Save()
	n.core.Succeed(s.core)
	s.core = n.core
	s.journal.Turn()
	n.told.tellNow()
	s.loop.CarryOut(n.actions)
	if n.led {
		s.loop.Take(cycle.Led{})
	}
	s.loop.Take(saved)
	klog.Background().Info("The journal goes on in another file", "took", time.Since(now))
}

// errStripped is for a configuration that needs whole objects while the core gets them without what
// a journal leaves out. Only a restart lists them anew.
var errStripped = errors.New("out-of-tree plugins and extenders need pods as they are, and with --journal they are " +
	"not kept; restart the scheduler")

// stripsObjects reports whether the core is given objects without what a journal leaves out.
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
