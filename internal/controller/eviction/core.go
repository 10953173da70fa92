package eviction

import (
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Options are what a cluster's operator chooses.
type Options struct {
	// InFlight bounds the pods whose eviction is in progress at once; each has one request in
	// flight at a time. Zero means DefaultInFlight.
	InFlight int
	// Budgets makes evictions go through the Eviction API, so that PodDisruptionBudgets are
	// respected. A pod that is overdue by BudgetsFor is deleted regardless (zero: never).
	Budgets    bool
	BudgetsFor time.Duration
	// Watches is set for a Core that keeps deadlines, and requests nothing.
	Watches bool
	// Wall converts a moment of the Core's own clock, which is never set, to wall-clock time, which
	// others write into objects. nil: both are the same.
	Wall func(now time.Time) time.Time `json:"-"`
}

// DefaultInFlight keeps an API server busy that answers within a tenth of a second, and is half of
// the writes that it processes at once (--max-mutating-requests-inflight). All share one
// connection.
const DefaultInFlight = 100

// Core decides which pods are evicted, and when. It belongs to one goroutine; see Step.
//
// Invariants: a pod's deadline is always the one that follows from the newest taints and
// tolerations seen, so nothing that was queued can be stale. A pod is in queue exactly while it has
// a deadline, is not terminating as far as watches show, and no attempt holds it.
type Core struct {
	options Options

	nodes map[string]*node                   // every node seen, or named by a pod
	pods  map[types.UID]*pod                 // every pod bound to a node
	names map[types.NamespacedName]types.UID // which of them holds its name now

	queue    queue               // pods that are to leave and that no attempt holds, by next attempt
	attempts map[Ticket]*attempt // attempts that wait for an answer
	underway int                 // attempts that were begun and are not over
	noting   map[Ticket]*node    // notes that wait for an answer
	unnoted  []*node             // nodes whose note has to be written
	tickets  Ticket              // the last one given out
	sights   uint64              // the last number given to a pod
	pending  map[string]int      // pods with a deadline, by taint key and effect
	stats    Stats

	devices devices                                // what watches showed of devices
	users   map[types.NamespacedName]map[*pod]bool // the pods that name each claim
	lists   [kinds]lists                           // of what tells of devices
	telling map[Ticket]*rule                       // statuses of rules that wait for an answer

	podList, nodeList               uint32 // number of the current list
	podsAreListing, nodesAreListing bool
	unanswered                      int       // reads that failed in a row: the API is in trouble
	pausedUntil                     time.Time // no attempt begins before, because of it
	actions                         []Action
	breakSafeguards                 safeguards // for tests, which show that each is needed
}

// safeguards are what tests can disable, one at a time.
type safeguards struct {
	noUID, noLiveRead, noRetry, noTimeAdded, noNote, noWitness, noDeviceRead bool
}

// Stats are counts that only the Core has.
type Stats struct {
	Retries   int // attempts after a pod's first
	Cancelled int // pending evictions that became unnecessary
	Averted   int // attempts that the live state stopped: the watch was behind
}

// New returns an empty Core. It learns everything from lists and watches.
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
		devices:  newDevices(),
		users:    map[types.NamespacedName]map[*pod]bool{},
		telling:  map[Ticket]*rule{},
	}
}

// Step applies an event and returns the actions that follow from it and from the time. They may be
// carried out in any order.
func (c *Core) Step(now time.Time, event Event) []Action {
	c.actions = nil
	switch e := event.(type) {
	case PodSeen:
		c.podSeen(now, e.Pod)
	case PodGone:
		if p := c.pods[e.UID]; p != nil {
			c.forgetPod(now, p)
		}
	case PodsListing:
		c.podList++
		c.podsAreListing = true
	case PodsListed:
		c.podsAreListing = false
		c.podsListed(now)
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
		c.routeAnswer(now, e)
	case Tick:
	default:
		c.devicesChanged(now, event)
	}

	if !c.options.Watches {
		c.sendNotes(now)
		c.writeStatuses(now)
		c.beginAttempts(now)
	}
	return c.actions
}

// devicesChanged applies an event about devices.
func (c *Core) devicesChanged(now time.Time, event Event) {
	switch e := event.(type) {
	case ClaimSeen:
		c.claimSeen(now, e.Claim)
	case ClaimGone:
		c.claimGone(now, e.Name)
	case SliceSeen:
		c.sliceSeen(now, e.Slice)
	case SliceGone:
		c.sliceGone(now, e.Name)
	case RuleSeen:
		c.ruleSeen(now, e.Rule)
	case RuleGone:
		c.ruleGone(now, e.Name)
	case Listing:
		c.beginList(e.Kind)
	case Listed:
		c.endList(now, e.Kind)
	}
}

// Wake returns when the next Tick is due if no event comes first.
func (c *Core) Wake() (at time.Time, ok bool) {
	if len(c.queue) > 0 && c.underway < c.options.InFlight {
		at, ok = laterOf(c.queue[0].nextAttempt(), c.pausedUntil), true
	}
	for _, n := range c.unnoted {
		if !n.noting && len(c.noting) < notesInFlight && (!ok || n.noteAt.Before(at)) {
			at, ok = n.noteAt, true
		}
	}
	if tell, tells := c.tellAt(); tells && (!ok || tell.Before(at)) {
		at, ok = tell, true
	}
	return at, ok
}

// Pending counts the pods with a deadline, by taint key and effect.
func (c *Core) Pending() map[string]int { return c.pending }

// Stats returns the counts since New.
func (c *Core) Stats() Stats { return c.stats }

// Going yields, in no order, the pods with a deadline that no attempt holds.
func (c *Core) Going() iter.Seq2[Pod, Due] {
	return func(yield func(Pod, Due) bool) {
		for _, p := range c.queue {
			if !yield(p.Pod, p.due) {
				return
			}
		}
	}
}

// Pods returns the number of placed pods.
func (c *Core) Pods() int { return len(c.pods) }

// Due returns the pod's deadline, as far as watches have shown.
func (c *Core) Due(uid types.UID) (Due, bool) {
	if p := c.pods[uid]; p != nil {
		return p.due, true
	}
	return Due{}, false
}

func (c *Core) issueTicket() Ticket {
	c.tickets++
	return c.tickets
}

func (c *Core) addAction(action Action) { c.actions = append(c.actions, action) }

// wallTime returns the wall-clock time of a moment.
func (c *Core) wallTime(now time.Time) time.Time {
	if c.options.Wall == nil {
		return now
	}
	return c.options.Wall(now)
}

// toClock converts a time that was written into an object to the Core's clock. It does not change
// when wall clocks are set, and is never in the future.
func (c *Core) toClock(now, written time.Time) time.Time {
	return earlierOf(now, now.Add(written.Sub(c.wallTime(now))))
}

// toClockSince is toClock for something that has just happened, unless it may have been missed.
// Times in objects have whole seconds: what happened within the written second, before it was seen,
// counts from the end of that second, so that no pod is evicted early.
func (c *Core) toClockSince(now, written time.Time, missed bool) time.Time {
	if missed {
		return c.toClock(now, written)
	}
	return c.toClock(now, written.Add(time.Second))
}

func laterOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func earlierOf(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
