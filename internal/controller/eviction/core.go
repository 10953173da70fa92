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
// tolerations seen, so nothing that was queued can be stale. A pod is in the queue exactly while it
// has a deadline, is not terminating as far as watches show, and no attempt holds it.
//
// What watches show goes into mirror and devices; from both, decidePod computes a deadline; evictor
// carries out those that are due. notes and statuses write what others should know. Each owns its
// fields, and out collects the actions of them all.
//
// The life of one eviction, from testdata/countdown.story.txt: the pod tolerates the taint for an
// hour.
//
//	   0.0s  NodeSeen with the taint     the pod gets its deadline, 3600 s
//	3600.0s  Tick                        read node node1
//	         Answered: still tainted     mark pod default/web
//	         Answered: it was unchanged  event: Marking for deletion Pod default/web
//	                                     delete pod default/web uid web#2
//	         Answered: OK                nothing; the watch will show that it terminates
//	         PodGone                     the pod is forgotten
//
// If the taint goes before 3600 s, the deadline is gone with it, and an event says that the
// deletion is cancelled.
type Core struct {
	options Options
	broke   *safeguards

	mirror    mirror
	devices   deviceMirror
	dating    dating
	deadlines deadlines
	evictor   evictor
	notes     notes
	statuses  ruleStatuses
	out       outbox
}

// safeguards are what tests can disable, one at a time, to show that each is needed.
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
	c := &Core{options: options, broke: &safeguards{}}
	clock := clock{options.Wall}
	c.dating = dating{clock, c.broke}
	c.mirror, c.devices = newMirror(clock), newDeviceMirror(c.dating)
	c.deadlines = deadlines{out: &c.out, pending: map[string]int{}}
	c.notes = notes{out: &c.out, broke: c.broke, written: map[Ticket]*node{}}
	c.statuses = ruleStatuses{
		clock: clock, out: &c.out, mirror: &c.mirror, devices: &c.devices, silent: options.Watches, written: map[Ticket]*rule{},
	}
	c.evictor = evictor{
		options: options, broke: c.broke, out: &c.out, mirror: &c.mirror, devices: &c.devices, dating: c.dating,
		deadlines: &c.deadlines, statuses: &c.statuses, attempts: map[Ticket]*attempt{},
	}
	return c
}

// outbox collects the actions of a Step. Tickets are never given out twice, not even by a Core that
// was saved and restored.
type outbox struct {
	tickets Ticket // the last one given out
	actions []Action
}

// issueTicket returns a ticket that was never given out before.
func (o *outbox) issueTicket() Ticket {
	o.tickets++
	return o.tickets
}

// add appends an action to those that Step returns.
func (o *outbox) add(action Action) { o.actions = append(o.actions, action) }

// Step applies an event and returns the actions that follow from it and from the time. They may be
// carried out in any order.
//
// now must not go back from one call to the next, and the slice that is returned is the caller's.
// Step never blocks; it takes time where an event concerns many pods, such as a taint on a node.
func (c *Core) Step(now time.Time, event Event) []Action {
	c.out.actions = nil
	switch e := event.(type) {
	case PodSeen:
		c.podSeen(now, e.Pod)
	case PodGone:
		if p := c.mirror.pods[e.UID]; p != nil {
			c.forgetPod(now, p)
		}
	case PodsListing:
		c.mirror.podList.begin()
	case PodsListed:
		c.mirror.podList.end()
		for _, p := range c.mirror.unlistedPods() {
			c.forgetPod(now, p)
		}
	case NodeSeen:
		c.nodeSeen(now, e.Node)
	case NodeGone:
		if n := c.mirror.nodes[e.Name]; n != nil && n.known {
			c.nodeGone(now, n)
		}
	case NodesListing:
		c.mirror.nodeList.begin()
	case NodesListed:
		c.mirror.nodeList.end()
		for _, n := range c.mirror.unlistedNodes() {
			c.nodeGone(now, n)
		}
	case Answered:
		if !c.notes.takeAnswer(now, e) && !c.statuses.takeAnswer(now, e) {
			c.evictor.takeAnswer(now, e)
		}
	case Tick:
	default:
		c.changeDevices(now, event)
	}

	// After every event, also a Tick: whatever has become due by now begins.
	if !c.options.Watches {
		c.notes.write(now)
		c.statuses.write(now)
		c.evictor.beginAttempts(now)
	}
	return c.out.actions
}

// changeDevices applies an event about devices, and decides anew all pods that it may concern.
func (c *Core) changeDevices(now time.Time, event Event) {
	switch e := event.(type) {
	case ClaimSeen:
		c.decidePods(now, c.devices.setClaim(e.Claim))
	case ClaimGone:
		c.decidePods(now, c.devices.dropClaim(e.Name))

	case SliceSeen:
		c.decidePods(now, c.devices.setSlice(now, e.Slice))
	case SliceGone:
		c.decidePods(now, c.devices.dropSlice(e.Name))

	// A new rule under an old name: what the old one tainted is free first.
	case RuleSeen:
		if c.devices.replacesRule(e.Rule) {
			c.decidePods(now, c.devices.dropRule(e.Rule.Name))
		}
		c.decidePods(now, c.devices.setRule(now, e.Rule))
	case RuleGone:
		c.decidePods(now, c.devices.dropRule(e.Name))

	case Listing:
		c.devices.lists[e.Kind].begin()
	case Listed:
		c.devices.lists[e.Kind].end()
		c.dropUnlisted(now, e.Kind)
	}
}

// dropUnlisted removes what the list of the kind did not show.
func (c *Core) dropUnlisted(now time.Time, kind Kind) {
	switch kind {
	case Claims:
		for _, name := range c.devices.unlistedClaims() {
			c.decidePods(now, c.devices.dropClaim(name))
		}
	case Slices:
		for _, name := range c.devices.unlistedSlices() {
			c.decidePods(now, c.devices.dropSlice(name))
		}
	case Rules:
		for _, name := range c.devices.unlistedRules() {
			c.decidePods(now, c.devices.dropRule(name))
		}
	}
}

// Wake returns when the next Tick is due if no event comes first.
func (c *Core) Wake() (at time.Time, ok bool) {
	at, ok = c.evictor.next()
	for _, next := range []func() (time.Time, bool){c.notes.next, c.statuses.next} {
		if sooner, due := next(); due && (!ok || sooner.Before(at)) {
			at, ok = sooner, true
		}
	}
	return at, ok
}

// Pending counts the pods with a deadline, by taint key and effect. The map is the Core's own: it
// must not be changed, and is valid until the next Step.
func (c *Core) Pending() map[string]int { return c.deadlines.pending }

// Stats returns the counts since New.
func (c *Core) Stats() Stats {
	return Stats{Retries: c.evictor.retries, Cancelled: c.deadlines.cancelled, Averted: c.evictor.averted}
}

// Going yields, in no order, the pods with a deadline that no attempt holds.
func (c *Core) Going() iter.Seq2[Pod, Due] {
	return func(yield func(Pod, Due) bool) {
		for _, p := range c.deadlines.queue {
			if !yield(p.Pod, p.due) {
				return
			}
		}
	}
}

// Pods returns the number of placed pods, terminating ones included.
func (c *Core) Pods() int { return len(c.mirror.pods) }

// Due returns the pod's deadline, as far as watches have shown.
func (c *Core) Due(uid types.UID) (Due, bool) {
	if p := c.mirror.pods[uid]; p != nil {
		return p.due, true
	}
	return Due{}, false
}
