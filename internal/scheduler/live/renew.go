package live

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// renewal is the change to another core, with which a journal that has become large or old
// continues in another file: each file has everything that its core was given, so that it can be
// replayed alone, and the oldest can be deleted. The new core gets the objects that the journal
// knows, and then how pods wait (cycle.Resumed), so that no pod is tried sooner or later because of
// the change. It happens when nothing is under way; to reach that, no pod is decided for up to
// calmWithin.
type renewal struct {
	calmBy   time.Time // until when to wait for calm; zero: not waiting
	look     time.Time // when to check for calm again
	notUntil time.Time // after a renewal that found no calm
}

const (
	calmWithin   = time.Second
	renewalPause = 10 * time.Millisecond
	renewalAgain = time.Minute
)

// wantsRenewal reports whether the core is to be replaced as soon as possible.
func (s *Scheduler) wantsRenewal(now time.Time) bool {
	return s.journal != nil && s.journal.Due() && !now.Before(s.renewal.notUntil)
}

// renewIfDue changes to another core if that is due. It reports whether this tick has to be
// skipped: calm is waited for, or the new core has only just got its objects.
func (s *Scheduler) renewIfDue(now time.Time) bool {
	r := &s.renewal
	switch {
	case !s.wantsRenewal(now):
		return false
	case s.core.Calm():
		*r = renewal{}
		s.renewCore(now)
		return true
	case r.calmBy.IsZero():
		r.calmBy = now.Add(calmWithin)
	case !now.Before(r.calmBy):
		*r = renewal{notUntil: now.Add(renewalAgain)}
		return false
	}
	r.look = now.Add(renewalPause)
	return true
}

// renewCore changes to another core.
func (s *Scheduler) renewCore(now time.Time) {
	seed := rand.Uint64()
	events, err := s.journal.Turn(now, seed)
	if err != nil {
		klog.Background().Error(err, "The journal does not go on")
		return
	}
	o := s.made
	o.Seed = seed
	core, err := cycle.New(o)
	if err != nil {
		klog.Background().Error(err, "The journal does not go on") // these profiles were accepted before
		return
	}
	saved := s.core.Save()
	core.Succeed(s.core)
	s.core = core
	for _, e := range events {
		s.loop.Take(e)
	}
	s.loop.Take(saved)
	klog.Background().Info("The journal goes on in another file", "events", len(events), "took", time.Since(now))
}

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
