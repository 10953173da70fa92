// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"iter"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// Options are the settings chosen by the operator of the cluster.
type Options struct {
	// InFlight bounds the concurrent evictions; each has one request in flight at a time. Zero
	// means DefaultInFlight.
	InFlight int
	// Budgets makes evictions use the Eviction API, so that PodDisruptionBudgets are respected. A
	// pod that is overdue by BudgetsFor is deleted regardless of budgets, unless BudgetsFor is
	// zero.
	Budgets    bool
	BudgetsFor time.Duration
	// Watches restricts the Core to maintaining deadlines; it sends no requests, and Wake returns
	// the earliest deadline.
	Watches bool
	// Wall converts a moment of the Core's own clock, which is never adjusted, to the wall-clock
	// time used in objects; nil means that both clocks are the same.
	Wall pacing.Wall `json:"-"`
}

// DefaultInFlight suffices to keep an API server with a latency of a tenth of a second busy. It is
// half of the API server's default limit of concurrent writes (--max-mutating-requests-inflight).
// All evictions share one connection.
const DefaultInFlight = 100

// Core decides which pods are evicted, and when. It belongs to one goroutine; see Step.
//
// Invariants: a pod's deadline always results from the newest observed taints and tolerations, so
// the queue is never stale. A pod is in the queue exactly while it has a deadline, is not observed
// as terminating, and is not held by an attempt.
//
// Events of watches update mirror and devices; decidePod computes a deadline from both; evictor
// carries out the due evictions. notes and statuses publish state for other components. Each of
// these types owns its fields; out collects the actions of all of them.
//
// This example from testdata/countdown.story.txt shows one eviction. The pod tolerates the taint
// for an hour:
//
//	   0.0s  NodeSeen with the taint     the pod gets its deadline, 3600 s
//	3600.0s  Tick                        read node node1
//	         Answered: still tainted     mark pod default/web
//	         Answered: it was unchanged  event: Marking for deletion Pod default/web
//	                                     delete pod default/web uid web#2
//	         Answered: OK                nothing; the watch will show that it terminates
//	         PodGone                     the pod is forgotten
//
// If the taint is removed before 3600 s, the deadline is removed as well, and an event on the pod
// announces that the deletion is cancelled.
type Core struct {
	options Options

	mirror    mirror
	devices   deviceMirror
	dating    dating
	deadlines deadlines
	evictor   evictor
	notes     notes
	statuses  ruleStatuses
	out       outbox
}

// Stats are counters kept by the Core.
type Stats struct {
	Retries   int // attempts after a pod's first
	Cancelled int // pending evictions that became unnecessary
	Averted   int // attempts stopped by the live state, because the watch lagged
}

// New returns an empty Core. Its state is built from lists and watches.
func New(options Options) *Core {
	if options.InFlight <= 0 {
		options.InFlight = DefaultInFlight
	}
	c := &Core{options: options}
	clock := clock{options.Wall}
	c.dating = dating{clock}
	c.mirror = mirror{clock: clock, nodes: map[string]*node{}, pods: map[types.UID]*pod{}, names: map[types.NamespacedName]types.UID{}}
	c.devices = deviceMirror{dating: c.dating, seen: newDevices(), users: map[types.NamespacedName]map[*pod]bool{}}
	c.deadlines = deadlines{out: &c.out, pending: map[string]int{}}
	c.notes = notes{out: &c.out, silent: options.Watches, written: map[response.Ticket]*node{}}
	c.statuses = ruleStatuses{
		clock: clock, out: &c.out, mirror: &c.mirror, devices: &c.devices, silent: options.Watches, written: map[response.Ticket]*rule{},
	}
	c.evictor = evictor{
		options: options, out: &c.out, mirror: &c.mirror, devices: &c.devices, dating: c.dating,
		deadlines: &c.deadlines, statuses: &c.statuses, attempts: map[response.Ticket]*attempt{},
	}
	return c
}

// outbox collects the actions of a Step. Tickets are never reused, not even by a Core that was
// saved and restored.
type outbox struct {
	tickets response.Ticket // the last ticket issued
	actions []Action
}

// issueTicket returns an unused ticket.
func (o *outbox) issueTicket() response.Ticket {
	o.tickets++
	return o.tickets
}

// add appends an action to the result of Step.
func (o *outbox) add(action Action) { o.actions = append(o.actions, action) }

// Step applies an event and returns the actions resulting from it and from the time. The actions
// may be executed in any order.
//
// now must not go backward between calls. The returned slice belongs to the caller. Step never
// blocks, but takes longer for events that affect many pods, such as a taint on a node.
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
		isMissing := func(p *pod) bool { return p.List != c.mirror.podList.Number }
		for _, p := range unlisted(c.mirror.pods, isMissing, inOrderOfSight) {
			c.forgetPod(now, p)
		}
	case NodeSeen:
		c.nodeSeen(now, e.Node)
	case NodeGone:
		if n := c.mirror.nodes[e.Name]; n != nil && n.Known {
			c.nodeGone(now, n)
		}
	case NodesListing:
		c.mirror.nodeList.begin()
	case NodesListed:
		c.mirror.nodeList.end()
		isMissing := func(n *node) bool { return n.Known && n.List != c.mirror.nodeList.Number }
		for _, n := range unlisted(c.mirror.nodes, isMissing, func(a, b *node) int { return strings.Compare(a.Name, b.Name) }) {
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

	// Start all due attempts after every event, including a Tick.
	if !c.options.Watches {
		c.notes.write(now)
		c.statuses.write(now)
		c.evictor.beginAttempts(now)
	}
	return c.out.actions
}

// changeDevices applies an event about devices, and re-evaluates all affected pods.
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

	// A rule with a new UID replaces the old rule of the same name. Dropping the old rule first
	// releases its pods.
	case RuleSeen:
		if before := c.devices.seen.rules[e.Rule.Name]; before != nil && before.UID != e.Rule.UID {
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

// dropUnlisted removes objects of the kind missing from its list.
func (c *Core) dropUnlisted(now time.Time, kind Kind) {
	seen, current := &c.devices.seen, c.devices.lists[kind].Number
	switch kind {
	case Claims:
		byName := func(a, b *ClaimState) int {
			return cmp.Or(strings.Compare(a.Name.Namespace, b.Name.Namespace), strings.Compare(a.Name.Name, b.Name.Name))
		}
		for _, claim := range unlisted(seen.claims, func(c *ClaimState) bool { return c.List != current }, byName) {
			c.decidePods(now, c.devices.dropClaim(claim.Name))
		}

	case Slices:
		byName := func(a, b *slice) int { return strings.Compare(a.Name, b.Name) }
		for _, slice := range unlisted(seen.slices, func(s *slice) bool { return s.list != current }, byName) {
			c.decidePods(now, c.devices.dropSlice(slice.Name))
		}
	case Rules:
		byName := func(a, b *rule) int { return strings.Compare(a.Name, b.Name) }
		for _, rule := range unlisted(seen.rules, func(r *rule) bool { return r.List != current }, byName) {
			c.decidePods(now, c.devices.dropRule(rule.Name))
		}
	}
}

// Wake returns the time at which the next Tick is due if no event arrives first. ok is false if the
// Core needs no Tick.
func (c *Core) Wake() (at time.Time, ok bool) {
	at, ok = c.evictor.next()
	for _, next := range []func() (time.Time, bool){c.notes.next, c.statuses.next} {
		if sooner, due := next(); due && (!ok || sooner.Before(at)) {
			at, ok = sooner, true
		}
	}
	return at, ok
}

// Pending counts the pods with a deadline, by taint key and effect. The Core owns the map: it must
// not be changed, and is valid until the next Step.
func (c *Core) Pending() map[string]int { return c.deadlines.pending }

// Stats returns the counters, which Save and Restore preserve.
func (c *Core) Stats() Stats {
	return Stats{Retries: c.evictor.retries, Cancelled: c.deadlines.cancelled, Averted: c.evictor.averted}
}

// Going yields the pods with a deadline and without an attempt, in no particular order.
func (c *Core) Going() iter.Seq2[Pod, Due] {
	return func(yield func(Pod, Due) bool) {
		for _, p := range c.deadlines.queue {
			if !yield(p.Pod, p.Due) {
				return
			}
		}
	}
}

// Pods returns the number of placed pods, including terminating ones.
func (c *Core) Pods() int { return len(c.mirror.pods) }

// Due returns the pod's deadline according to the observed state.
func (c *Core) Due(uid types.UID) (Due, bool) {
	if p := c.mirror.pods[uid]; p != nil {
		return p.Due, true
	}
	return Due{}, false
}
