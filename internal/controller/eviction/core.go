package eviction

import (
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Options are what a cluster's operator chooses.
type Options struct {
	// InFlight bounds the pods that are being taken through their eviction at
	// once; each is one request at a time. Zero is DefaultInFlight.
	InFlight int
	// Budgets sends evictions through the Eviction API, so that
	// PodDisruptionBudgets count; BudgetsFor after a pod is due it is deleted
	// all the same (zero: never).
	Budgets    bool
	BudgetsFor time.Duration
	// Watches has the Core keep deadlines and ask for nothing.
	Watches bool
	// Wall is what clocks on walls, by which others write times into objects,
	// show at a moment of the Core's own clock, which nobody sets. nil: the same.
	Wall func(now time.Time) time.Time `json:"-"`
}

// DefaultInFlight is enough to keep an API server busy whose answers take a
// tenth of a second, and half of the writes that it does at once
// (--max-mutating-requests-inflight). All go over one connection.
const DefaultInFlight = 100

// Core decides who is evicted when. It belongs to one goroutine; see Step.
type Core struct {
	options Options

	nodes map[string]*node                   // every node seen, or named by a pod
	pods  map[types.UID]*pod                 // every pod bound to a node
	names map[types.NamespacedName]types.UID // which of them holds its name now

	queue    queue               // pods that are to go and not under way, by next step
	attempts map[Ticket]*attempt // tries that wait for an answer
	underway int                 // tries that were begun and are not over
	noting   map[Ticket]*node    // notes that wait for an answer
	unnoted  []*node             // nodes whose note is not as it should be
	tickets  Ticket              // the last one given out
	sights   uint64              // the last number given to a pod
	pending  map[string]int      // pods that are to go, by taint key and effect
	stats    Stats

	podList, nodeList               uint32 // number of the current list
	podsAreListing, nodesAreListing bool
	unanswered                      int       // reads that failed in a row: the API is in trouble
	pausedUntil                     time.Time // no try begins before, because of it
	actions                         []Action
	breakSafeguards                 safeguards // for tests, which show that each is needed
}

// safeguards lists what tests may break, one at a time.
type safeguards struct {
	noUID, noLiveRead, noRetry, noTimeAdded, noNote, noWitness bool
}

// Stats counts what only the Core knows.
type Stats struct {
	Retries   int // tries after a pod's first
	Cancelled int // evictions that were pending and then not needed
	Averted   int // tries that the live state stopped: the watch was behind
}

// New returns an empty Core, which learns the rest from lists and watches.
func New(options Options) *Core {
	if options.InFlight <= 0 {
		options.InFlight = DefaultInFlight
	}
	return &Core{
		options:  options,
		nodes:    map[string]*node{},
		pods:     map[types.UID]*pod{},
		names:    map[types.NamespacedName]types.UID{},
		attempts: map[Ticket]*attempt{},
		noting:   map[Ticket]*node{},
		pending:  map[string]int{},
	}
}

// Step takes an event in and says what is to be done because of it, and of the
// time that has come. The actions may be carried out in any order.
func (c *Core) Step(now time.Time, event Event) []Action {
	c.actions = nil
	switch e := event.(type) {
	case PodSeen:
		c.podSeen(now, e.Pod)
	case PodGone:
		if p := c.pods[e.UID]; p != nil {
			c.forget(p)
		}
	case PodsListing:
		c.podList++
		c.podsAreListing = true
	case PodsListed:
		c.podsAreListing = false
		c.podsListed()
	case NodeSeen:
		c.nodeSeen(now, e.Node)
	case NodeGone:
		if n := c.nodes[e.Name]; n != nil && n.known {
			c.nodeGone(now, n)
		}
	case NodesListing:
		c.nodeList++
		c.nodesAreListing = true
	case NodesListed:
		c.nodesAreListing = false
		c.nodesListed(now)
	case Answered:
		c.answered(now, e)
	case Tick:
	}
	if !c.options.Watches {
		c.note(now)
		c.begin(now)
	}
	return c.actions
}

// Wake is when the next Tick is due, if no event comes before.
func (c *Core) Wake() (at time.Time, ok bool) {
	if len(c.queue) > 0 && c.underway < c.options.InFlight {
		at, ok = later(c.queue[0].next(), c.pausedUntil), true
	}
	for _, n := range c.unnoted {
		if !n.noting && len(c.noting) < notesInFlight && (!ok || n.noteAt.Before(at)) {
			at, ok = n.noteAt, true
		}
	}
	return at, ok
}

// Pending is the number of pods that are to go, by taint key and effect, now
// or at a time to come.
func (c *Core) Pending() map[string]int { return c.pending }

// Stats returns the counts since New.
func (c *Core) Stats() Stats { return c.stats }

// Going are the pods that are to go, now or at a time to come, and that no try
// is under way for; in no order.
func (c *Core) Going() iter.Seq2[Pod, Due] {
	return func(yield func(Pod, Due) bool) {
		for _, p := range c.queue {
			if !yield(p.Pod, p.due) {
				return
			}
		}
	}
}

// Pods is how many pods on nodes there are.
func (c *Core) Pods() int { return len(c.pods) }

// Due is when the pod has to go, as far as the watches have shown.
func (c *Core) Due(uid types.UID) (Due, bool) {
	if p := c.pods[uid]; p != nil {
		return p.due, true
	}
	return Due{}, false
}

func (c *Core) ticket() Ticket {
	c.tickets++
	return c.tickets
}

func (c *Core) do(action Action) { c.actions = append(c.actions, action) }

// wall is the time that others would write down now.
func (c *Core) wall(now time.Time) time.Time {
	if c.options.Wall == nil {
		return now
	}
	return c.options.Wall(now)
}

// own is a time that somebody wrote down, by the Core's clock. What is counted
// from it does not change when walls' clocks are set; it is never to come.
func (c *Core) own(now, written time.Time) time.Time {
	return earlier(now, now.Add(written.Sub(c.wall(now))))
}

// since is own for what just happened, unless it may have been missed. Times in
// objects have whole seconds: what came about within the second written, before
// it was seen, is counted from the end of that time, so that no pod goes early.
func (c *Core) since(now, written time.Time, missed bool) time.Time {
	if missed {
		return c.own(now, written)
	}
	return c.own(now, written.Add(time.Second))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
