// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	v1 "k8s.io/api/core/v1"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// Options are the operator's choices. Zero values are the defaults.
//
// The policy and the scheduler's profiles belong to the planner (package movecontroller).
type Options struct {
	// Surge evicts pods only after an additional replica of their workload is ready, where
	// possible.
	Surge bool
	// Every is the interval between starts of runs; 0 means a single run.
	Every time.Duration
	// Wall converts the Core's clock to wall-clock time; nil means that the Core's clock is the
	// wall clock.
	Wall pacing.Wall
}

// Bounds of a run. When a bound is reached, the Core ends the run or stops waiting.
const (
	allRefused  = 10 * time.Minute // limit for successive refused evictions, across pods
	placesFor   = 20 * time.Second // limit for the scheduler to place pending pods that fit
	settlesFor  = time.Minute      // limit for statuses to reflect the last move
	restsFor    = 30 * time.Minute // rest of a moved workload; doubled by each miss up to longestRest
	longestRest = 24 * time.Hour
	suspended   = 30 * time.Minute // pause between a stopped run and the next run
	// A single miss may be accidental, such as a pod placed by another scheduler; two in a row
	// indicate that proofs do not hold in this cluster.
	mostMissed   = 2  // consecutive misses
	mostRefused  = 3  // consecutive moves with refused evictions
	mostStale    = 5  // consecutive outdated plans, after which newly scheduled pods no longer outdate a plan
	mostOutdated = 15 // consecutive outdated plans, after which the run ends
	// With names of maximum length, 2,000 entries take about 900 KB; a ConfigMap is limited to 1
	// MiB.
	mostResting = 2000 // limit of resting workloads in the journal
)

// phase is the state of the Core's state machine.
//
//	learning -> planning -> tainting -> noting -> evicting -> arriving -> planning ...
//	                                          \-> surging  -> arriving
//	planning -> tainting -> ending -> idle
//
// pausing precedes planning while a plan would be useless, and restoring precedes the first plan of
// a run with leftover surges.
type phase int

const (
	learning  phase = iota // waits for the journal and all objects
	idle                   // waits for the time of the next run
	pausing                // waits for the time to plan again
	planning               // waits for a plan
	tainting               // writes taints of nodes
	noting                 // writes the journal
	evicting               // evicts the victim
	surging                // waits for the successor before the victim leaves
	restoring              // undoes surges left behind by an earlier process
	arriving               // waits for the successor
	ending                 // writes the journal at the end of a run
	over
)

// Core decides the next action. At most one move is in progress, and it is journaled before its
// victim is evicted.
//
// Core performs no I/O and has no clock. Step is its only entry point, and must not be called
// concurrently. Each phase waits for a single event: the response to its request, an object, or a
// time.
type Core struct {
	mover
	options Options
	journal logbook

	phase  phase
	listed bool
	asked  bool // the journal has been requested

	waiting map[response.Ticket]SetTaint // taint writes in flight
	// written covers the time between a write and its event. Without it, a node that was just
	// closed would look open and be written again.
	written map[string]string // taint values that may have been written but have not been observed yet, by node
	closes  bool              // the taints being written close nodes for a plan
	closed  map[string]bool   // nodes closed by this run

	run run
	// plan is the newest plan. move is the move in progress, or nil.
	plan  *rebalance.Plan
	proof proof // of the plan's first move
	move  *departure
}

// run is the state of one run.
//
// The zero value is a run that has not begun. None of it is persisted: state needed by the next run
// or process is in the journal.
type run struct {
	began    time.Time
	reported bool // the first plan has been reported
	// moves counts completed moves. misses counts moves with a successor that did not arrive as
	// proved.
	moves, misses int
	missed        int // consecutive misses
	// withheld counts moves abandoned because their evictions kept being refused; stale counts
	// plans outdated before use.
	withheld int // consecutive
	stale    int // consecutive
	refusal  refusal
	// arrived holds the successors of this run. They are not moved again, so that a run is finite.
	arrived map[types.UID]bool
	// spent counts the run's moves against the policy's limits.
	spent    rebalance.Spent
	resting  map[string]Rest // the journal's rests at the start of the run, and the rests added by this run
	placing  time.Time       // time since which every plan has had pending pods that the scheduler is about to place
	settling time.Time       // time until which an empty plan may be due to outdated statuses
	stopped  string
	failed   int // consecutive failed writes
}

// refusal records the evictions refused by the API server since the last accepted eviction. It
// bounds a run's attempts, both for a single pod and across pods.
type refusal struct {
	uid   types.UID
	since time.Time // first refusal of this pod
	first time.Time // first refusal of any pod
	count int       // consecutive refusals; pauses grow with it
}

// New returns a Core without any cluster state. The first Step requests the journal; the Core
// begins once it has the journal and the whole cluster.
func New(options Options) *Core {
	c := &Core{
		options: options, waiting: map[response.Ticket]SetTaint{}, written: map[string]string{},
		journal: logbook{Journal: Journal{Resting: map[string]Rest{}}},
	}
	c.init(c, newCluster(), options.Wall)
	c.proof.cluster = c.cluster
	return c
}

// Step applies an event and returns the actions caused by the event and by the passing of time.
//
// The caller owns the actions, executes them in order, and feeds the responses back as events. Time
// must not go backward.
func (c *Core) Step(now time.Time, event Event) []Action {
	c.beginStep(now)
	if !c.asked {
		c.asked = true
		c.addAction(Recall{})
	}

	switch e := event.(type) {
	case Seen:
		// notice needs the pod's previous node, so it runs before the cluster is updated.
		c.proof.notice(e.Object)
		// The write has been observed. From now on the node object is authoritative.
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

// Wake returns the time of the next Tick, unless an event arrives first.
func (c *Core) Wake() (at time.Time, ok bool) { return c.at, !c.at.IsZero() && c.phase != over }

// enter changes the phase and clears the alarm: each phase sets its own.
func (c *Core) enter(p phase) { c.phase, c.at = p, time.Time{} }

// advance acts on the time and on observed state. It runs after every event, so each case must be
// cheap and idempotent.
func (c *Core) advance() {
	switch due := !c.at.IsZero() && !c.now.Before(c.at); c.phase {
	case learning:
		if c.listed && c.journal.recalled {
			c.begin()
		}
	case idle:
		if c.stopping {
			c.enter(over)
			// The journal could not be read, or another process has written it, so it must be read
			// again.
		} else if due && !c.journal.recalled {
			c.enter(learning)
			c.addAction(Recall{})
		} else if due {
			c.begin()
		}
	case pausing:
		if c.stopping {
			c.finish(interrupted)
		} else if due {
			c.ask()
		}

	// A move is in progress, from eviction to arrival.
	case evicting:
		c.tryEviction()
	case surging, restoring:
		c.followSurges()
	case arriving:
		c.follow()
	}
}

const interrupted = "interrupted" // reason for the end of a run, a drain or a roll after Stop

// begin starts a run. It first undoes surges left behind by an earlier run. The run works on a copy
// of the journal's rests, because a workload with a refused eviction rests only for this run.
func (c *Core) begin() {
	c.found = map[types.UID]bool{}
	c.run = run{began: c.now, arrived: map[types.UID]bool{}, resting: map[string]Rest{}}
	c.closed = map[string]bool{}
	c.journal.forgetRests(c.wall())
	maps.Copy(c.run.resting, c.journal.Resting)

	// The additional replica of a leftover surge would falsify the plan.
	c.recoverSurges()
	if len(c.surges.list) > 0 {
		c.enter(restoring)
		c.followSurges()
		return
	}
	c.resume()
}

// resume continues a journaled move, or drops it if it was not made.
//
// The journal is written before the eviction, so the move may not have begun. A victim that exists
// and is not terminating was not evicted; if it has an EvictionRequest, the request is withdrawn. A
// missing victim may have disappeared for another reason; resume still waits for its successor.
func (c *Core) resume() {
	f := c.journal.Move
	if f == nil {
		c.ask()
		return
	}

	// asked and reserving are set so that drop withdraws the EvictionRequest and the reservation of
	// the previous process.
	c.move = departureOf(f)
	c.move.asked, c.reserving = c.now, []*departure{c.move}
	if !c.leaves(c.move) {
		c.drop()
		c.ask()
		return
	}

	// The time of the eviction is unknown. Counting from now only waits longer.
	c.move.at, c.move.left = c.now, c.now
	c.report(c.move, Resumed, "", "")
	c.enter(arriving)
	c.follow()
}

// finish ends a run early with a reason: it reopens nodes and writes the journal.
func (c *Core) finish(why string) {
	c.run.stopped = why
	c.close(nil)
}

// done reports the end of a run and waits for the next one.
//
// The next run begins Every after the start of this one, or immediately if this one took longer. A
// stopped run is followed by a pause of at least the constant suspended, because its cause (such as
// missed moves) rarely disappears quickly.
func (c *Core) done() {
	c.addAction(Done{Moves: c.run.moves, Misses: c.run.misses, Stopped: c.run.stopped, Plan: c.plan})
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

// machine is the common part of this package's state machines. A step takes a time and an event,
// and returns actions. The time is constant during a step; the alarm triggers another step in the
// absence of events.
//
// This keeps decisions free of I/O, so tests drive the state machines with scripts of events and
// times (testdata/*.execution.txt).
type machine struct {
	now     time.Time
	at      time.Time       // the alarm: time of the next step without an event; zero for none
	actions []Action        // actions of this step
	tickets response.Ticket // the last issued ticket; tickets are unique within a machine
	wallOf  pacing.Wall
}

// beginStep begins a step at the given time and without actions.
func (m *machine) beginStep(now time.Time) { m.now, m.actions = now, nil }

// addAction adds an action to the result of this step.
func (m *machine) addAction(action Action) { m.actions = append(m.actions, action) }

// nextTicket returns the ticket of a new request. It never returns 0, which means no request in
// flight.
func (m *machine) nextTicket() response.Ticket {
	m.tickets++
	return m.tickets
}

// wake sets the alarm, unless it is set to an earlier time.
func (m *machine) wake(at time.Time) { m.at = pacing.Sooner(m.at, at) }

// wall returns the time of the step on the clock used for API timestamps.
func (m *machine) wall() time.Time {
	return m.wallOf.At(m.now)
}
