package cycle

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// common is what all components of the core work on: the model of the cluster, the queue, and the
// current step with the actions that it returns. Each component embeds a pointer to the same one.
//
// Every action with an errand has it here until it is answered. The shell answers every one of
// them, including those that it was asked to cancel.
type common struct {
	options Options    // set by newCommon, constant from then on
	rng     *rand.Rand // the only source of chance; a draw more or fewer changes all later ones

	cluster *cluster.Cluster
	queue   *queue.Queue
	groups  *groups.Set // empty if pod groups are off

	now     time.Time     // of the current step
	ahead   time.Duration // see WallSet
	actions []Action      // of the current step
	tickets Ticket        // the last one issued
	errands map[Ticket]errand

	mostErrands int // see cluster.Shrunk
}

// newCommon makes the queue, the cluster model and the set of groups, all empty. Missing options
// get their defaults: a NoObserver, and a stopwatch that stands still, with which all durations are
// 0.
func newCommon(o Options) *common {
	q := queue.New()
	if o.Observer == nil {
		o.Observer = NoObserver{}
	} else {
		q.Asked, q.EntityMoved = o.Observer.Hinted, o.Observer.EntityQueued
	}

	if o.Stopwatch == nil {
		o.Stopwatch = func() time.Time { return time.Time{} }
	}
	q.FirstBackoff = cmp.Or(o.FirstBackoff, q.FirstBackoff)
	q.LastBackoff = cmp.Or(o.LastBackoff, q.LastBackoff)
	q.MaxWait = cmp.Or(o.MaxWait, q.MaxWait)
	q.WaitOutBackoff = o.Disabled.PopFromBackoff
	q.Counted = o.Observer.Rejected
	q.Grouped = o.Groups.Generic

	c, set := cluster.New(), groups.New()
	set.Nested = o.Groups.Composite
	return &common{
		options: o, rng: rand.New(rand.NewPCG(o.Seed, 1)), cluster: c, queue: q, groups: set,
		errands: map[Ticket]errand{},
	}
}

// newDecider makes the decider of a profile. The seed decides between nodes with equal scores.
func (s *common) newDecider(p *plugins.Profile, seed uint64) *decide.Decider {
	d := decide.New(s.cluster, p, seed)
	d.Prefer = s.options.Prefer
	return d
}

// errand takes the answer to one action. It is called once, in the step of the [Answered]; what it
// was sent for may have ended meanwhile, so each implementation looks first whether it still
// matters.
type errand interface{ handleOutcome(o Outcome) }

// beginStep begins a step: the actions of the previous one are dropped, and their slice is reused.
func (s *common) beginStep(now time.Time) {
	clear(s.actions)
	s.now, s.actions = now, s.actions[:0]
}

// addAction adds an action to those that the current step returns.
func (s *common) addAction(a Action) { s.actions = append(s.actions, a) }

// issueTicket issues a ticket for an action that is not answered. Hold and Release are linked by
// one.
func (s *common) issueTicket() Ticket {
	s.tickets++
	return s.tickets
}

// issueErrand issues the ticket for an action whose answer e will take.
func (s *common) issueErrand(e errand) Ticket {
	t := s.issueTicket()
	s.errands[t] = e
	s.errands = cluster.Shrunk(s.errands, &s.mostErrands)
	return t
}

// routeAnswer hands an answer to its errand. A second answer to the same action is ignored.
func (s *common) routeAnswer(a Answered) {
	if e, ok := s.errands[a.Ticket]; ok {
		delete(s.errands, a.Ticket)
		s.errands = cluster.Shrunk(s.errands, &s.mostErrands)
		e.handleOutcome(a.Outcome)
	}
}

// observer is never nil.
func (s *common) observer() Observer { return s.options.Observer }

// wallTime is the time of the current step as the API's objects show times.
func (s *common) wallTime() time.Time { return s.now.Add(s.ahead) }

// clock is the time by which durations are measured for metrics. Unlike s.now it may go on within a
// step, and decisions must not depend on it.
func (s *common) clock() time.Time { return s.options.Stopwatch() }

// groupOf returns the group that an item is scheduled with, or nil.
func (s *common) groupOf(item *queue.Item) *groups.Group { return s.groups.Of(item.Pod.UID) }

// readiness tells when the core may decide: every kind that it follows has been listed, and this
// scheduler leads. Both stay true once they are, except that new kinds may be added, which then
// have to be listed first.
type readiness struct {
	unlisted map[Kind]bool // kinds not listed yet
	follows  bool          // Follows was received
	leads    bool
	begun    bool // Ready was returned
}

// followKinds adds kinds that must be listed before anything is decided. It may be called again
// when a kind is followed later.
func (r *readiness) followKinds(kinds []Kind) {
	r.follows = true
	for _, kind := range kinds {
		r.unlisted[kind] = true
	}
}

// hasSynced tells whether every followed kind has been listed.
func (r *readiness) hasSynced() bool { return r.follows && len(r.unlisted) == 0 }

// mayDecide tells whether the core may decide pods yet.
func (r *readiness) mayDecide() bool { return r.leads && r.hasSynced() }
