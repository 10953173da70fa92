package execute

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// Options are the operator's choices. Zero values are the defaults.
//
// The policy and the scheduler's profiles are not here: they are those of who makes the plans
// (package live).
type Options struct {
	// Surge has pods leave once one more replica of their workload is ready, where that can be.
	Surge bool
	// Every is how often a run begins; 0: there is a single run.
	Every time.Duration
	// Wall converts the Core's clock to wall-clock time; nil: both are the same.
	Wall func(now time.Time) time.Time
}

// Bounds of a run. Each is how long the Core waits before it takes the run for failed, or goes on.
const (
	allRefused  = 10 * time.Minute // for how long the evictions of one pod after the other may be put off
	placesFor   = 20 * time.Second // how long the scheduler has to place pending pods that fit
	settlesFor  = time.Minute      // for how long statuses may take to catch up with the last move
	restsFor    = 30 * time.Minute // a workload that was moved; doubled by each miss up to longestRest
	longestRest = 24 * time.Hour
	suspended   = 30 * time.Minute // between a run that was stopped and the next
	// One miss in a row may be chance, such as a pod that another scheduler has placed; two say
	// that proofs do not hold here.
	mostMissed   = 2  // in a row
	mostRefused  = 3  // moves whose evictions are refused, in a row
	mostStale    = 5  // plans in a row that were outdated before they could be followed
	mostOutdated = 15 // the same, with those that pods on the successor's node do not outdate
	// With names of the greatest length, 2,000 entries have some 900 KB, and a ConfigMap may have 1
	// MiB.
	mostResting = 2000 // workloads in the journal
)

// phase is what the Core waits for.
//
//	learning -> planning -> tainting -> noting -> evicting -> arriving -> planning ...
//	                                          \-> surging  -> arriving
//	planning -> tainting -> ending -> idle
//
// pausing comes before planning where a plan would be of no use yet, and restoring before the first
// plan of a run, if surges were left behind.
type phase int

const (
	learning  phase = iota // the journal and all objects
	idle                   // the time for the next run
	pausing                // the time to plan again
	planning               // a plan
	tainting               // taints on nodes
	noting                 // the journal
	evicting               // the eviction
	surging                // the successor, before the victim leaves
	restoring              // surges that an earlier process has left behind
	arriving               // the successor
	ending                 // the journal, at the end of a run
	over
)

// Core decides what to do next. At most one move is in progress, and it is in the journal before
// its victim is evicted.
//
// It does no I/O and has no clock. Step is the only way in, and must not be called by two
// goroutines at once. A phase waits for one thing only: the answer to its request, an object, or a
// time.
type Core struct {
	mover
	options Options
	journal logbook

	phase  phase
	listed bool
	asked  bool // the journal has been requested

	waiting map[Ticket]SetTaint // taints that are being written
	// written covers the time between a write and the event that shows it. Otherwise a node that
	// was just closed would look open, and be written again.
	written map[string]string // by node, a taint that was or may have been written and was not seen yet
	closes  bool              // the taints being written close nodes for a plan
	closed  map[string]bool   // nodes that this run has closed

	run run
	// plan is the newest plan, move the one in progress or nil; both end with the run.
	plan  *rebalance.Plan
	proof proof // of the plan's first move
	move  *departure
}

// run is the state of one run.
//
// The zero value is a run that has not begun. Nothing of it survives: what the next run or process
// has to know is in the journal.
type run struct {
	began time.Time
	told  bool // the first plan has been reported
	// moves counts those that were made, and misses those of them whose successor did not arrive as
	// proved.
	moves, misses int
	missed        int // in a row
	// withheld counts moves whose evictions were refused until they were given up; stale counts
	// plans that were outdated before they could be followed.
	withheld int // in a row
	stale    int // in a row
	refusal  refusal
	// arrived are the successors of this run: they are not moved again, so a run is finite.
	arrived map[types.UID]bool
	// spent counts the moves of the run towards the policy's limits.
	spent    rebalance.Spent
	resting  map[string]Rest // the journal's when the run began, and workloads that were refused since
	placing  time.Time       // since when pods are pending that the scheduler is about to place
	settling time.Time       // until when an empty plan may be due to statuses that lag
	stopped  string
	failed   int // writes, in a row
}

// refusal is the history of evictions that the API server has put off since the last one that it
// accepted. It bounds how long a run tries: for one pod, and for one pod after the other.
type refusal struct {
	uid   types.UID
	since time.Time // of this pod
	first time.Time // of any
	count int       // in a row: pauses grow with it
}

// New returns a Core that has seen nothing of the cluster. The first Step makes it request the
// journal; it begins when that and the whole cluster have been seen.
func New(options Options) *Core {
	c := &Core{
		options: options, waiting: map[Ticket]SetTaint{}, written: map[string]string{},
		journal: logbook{Journal: Journal{Resting: map[string]Rest{}}},
	}
	c.init(c, newCluster(), options.Wall)
	c.proof.cluster = c.cluster
	return c
}

// Step applies an event and returns the actions that follow from it and from the time.
//
// The actions belong to the caller, who carries them out in this order and feeds the answers back
// as events. Time must not go backward.
func (c *Core) Step(now time.Time, event Event) []Action {
	c.beginStep(now)
	if !c.asked {
		c.asked = true
		c.do(Recall{})
	}

	switch e := event.(type) {
	case Seen:
		// Before the cluster is updated: what matters is whether the pod had a node before.
		c.proof.notice(e.Object)
		// The write has been seen. From now on the node itself says what it is.
		if n, ok := e.Object.(*v1.Node); ok && c.written[n.Name] == taintOf(n) {
			delete(c.written, n.Name)
		}
	case Listed:
		c.listed = true
	case Recalled:
		c.recall(e)
	case Planned:
		c.planned(e.Plan)
	case Answered:
		c.answered(e)
	}

	c.take(event)
	c.advance()
	return c.actions
}

// Wake returns when the next Tick is due if no event comes first.
func (c *Core) Wake() (at time.Time, ok bool) { return c.at, !c.at.IsZero() && c.phase != over }

// enter changes the phase, and clears the alarm: each phase sets its own.
func (c *Core) enter(p phase) { c.phase, c.at = p, time.Time{} }

// advance does what follows from the time, or from what was seen. It is called after every event,
// so each case must be cheap, and must do nothing twice.
func (c *Core) advance() {
	due := !c.at.IsZero() && !c.now.Before(c.at)

	switch c.phase {
	case learning:
		if c.listed && c.journal.recalled {
			c.begin()
		}
	case idle:
		if c.stopping {
			c.enter(over)
			// Another process has written the journal since: what it says has to be read again.
		} else if due && !c.journal.recalled {
			c.enter(learning)
			c.do(Recall{})
		} else if due {
			c.begin()
		}
	case pausing:
		if c.stopping {
			c.finish(interrupted)
		} else if due {
			c.ask()
		}

	// A move is under way, from eviction to arrival.
	case evicting:
		c.tryEviction()
	case surging, restoring:
		c.followSurges()
	case arriving:
		c.follow()
	}
}

const interrupted = "interrupted" // why a run, a drain or a roll has ended after Stop

// begin starts a run. What an earlier one has left of surges is put back first. Resting workloads
// are copied: a workload that is refused in this run rests in it, but not in the journal.
func (c *Core) begin() {
	c.found = map[types.UID]bool{}
	c.run = run{began: c.now, arrived: map[types.UID]bool{}, resting: map[string]Rest{}}
	c.closed = map[string]bool{}
	c.journal.forgetRests(c.wall())
	for workload, rest := range c.journal.Resting {
		c.run.resting[workload] = rest
	}

	// A scale that is one too high would make every count of replicas wrong, and the plan with it.
	c.recoverSurges()
	if len(c.surges.list) > 0 {
		c.enter(restoring)
		c.followSurges()
		return
	}
	c.resume()
}

// resume follows up a move in the journal, or forgets it if it was not made.
//
// The journal is written before the eviction, so the move may not have begun. The victim tells: if
// it is there and not terminating, it was not evicted, or only asked to leave by an
// EvictionRequest, which is withdrawn. If it has gone, it may have gone for another reason; its
// successor is waited for all the same.
func (c *Core) resume() {
	f := c.journal.Move
	if f == nil {
		c.ask()
		return
	}

	// What the earlier process has asked for, or has had kept, is taken back with the move.
	c.move = departureOf(f)
	c.move.asked, c.room = c.now, c.move
	if !c.leaves(c.move) {
		c.drop()
		c.ask()
		return
	}

	// When it was evicted is not known. Counting from now only waits longer.
	c.move.at, c.move.left = c.now, c.now
	c.tell(c.move, Resumed, "", "")
	c.enter(arriving)
	c.follow()
}

// finish ends a run for a reason: nodes are opened again, and the journal is written. It is the way
// to end early. A run that is done ends by end.
func (c *Core) finish(why string) {
	c.run.stopped = why
	c.close(nil)
}

// done reports the end of a run, and waits for the next one.
//
// The next run begins Every after this one began, or at once if it took longer. After one that was
// stopped it is at least the constant suspended: what stopped it, such as moves that miss, is
// seldom over in a moment.
func (c *Core) done() {
	c.do(Done{Moves: c.run.moves, Misses: c.run.misses, Stopped: c.run.stopped, Plan: c.plan})
	c.move = nil
	if c.options.Every == 0 || c.stopping {
		c.enter(over)
		return
	}
	c.enter(idle)
	c.at = c.run.began.Add(c.options.Every)
	if c.run.stopped != "" {
		c.at = c.now.Add(max(c.options.Every, suspended))
	}
}
