package live

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// renewal is the change to another core, with which a journal that has become large or old goes on
// in another file: each file has all that its core was told, so that it can be played alone, and
// the oldest can go. The new core is shown the objects that the journal knows and then told how
// pods wait (cycle.Resumed), so that nobody is tried sooner or later for it. It happens when
// nothing is under way; for that, no pod is decided for up to calmWithin.
type renewal struct {
	calmBy   time.Time // until then calm is waited for; zero: it is not
	look     time.Time // when it is looked again whether there is calm
	notUntil time.Time // after one that found no calm
}

const (
	calmWithin   = time.Second
	renewalPause = 10 * time.Millisecond
	renewalAgain = time.Minute
)

// wantsRenewal tells whether the core is to be changed as soon as that is possible.
func (s *Scheduler) wantsRenewal(now time.Time) bool {
	return s.journal != nil && s.journal.Due() && !now.Before(s.renewal.notUntil)
}

// renews changes to another core if that is due. It tells whether time must not take effect yet:
// calm is waited for, or the new core has only just been told what there is.
func (s *Scheduler) renews(now time.Time) bool {
	r := &s.renewal
	switch {
	case !s.wantsRenewal(now):
		return false
	case s.core.Calm():
		*r = renewal{}
		s.renew(now)
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

// renew changes to another core.
func (s *Scheduler) renew(now time.Time) {
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
		klog.Background().Error(err, "The journal does not go on") // these profiles were taken before
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

var errStripped = errors.New("out-of-tree plugins and extenders need pods as they are, and with --journal they are not kept; restart the scheduler")

// checkStripped refuses profiles that somebody from outside has a part in, if objects are stripped.
func (s *Scheduler) checkStripped(profiles []cycle.Profile) error {
	if s.journal != nil && s.journal.Strips() && slices.ContainsFunc(profiles, func(p cycle.Profile) bool {
		return len(p.Extensions)+len(p.Outside)+len(p.Extenders) > 0
	}) {
		return errStripped
	}
	return nil
}
