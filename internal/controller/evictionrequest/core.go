package evictionrequest

import (
	"maps"
	"slices"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/ask"
	"github.com/berth-k8s/berth/internal/world/agenda"
)

const (
	// DefaultInFlight is how many requests are under way at most.
	DefaultInFlight = 16
	// Delays between evictions of a pod that are refused.
	firstRetry, lastRetry = time.Second, 5 * time.Second
	// assumedFor is how long an accepted eviction counts without being seen.
	assumedFor = 30 * time.Second
	// perRefused is what each pod adds to the pause that cannot be evicted for now: thousands of
	// them ask 50 times a second together.
	perRefused = 20 * time.Millisecond
)

// writes spaces requests of one kind for one object, whatever the responses are. The first delays
// are short, since an Eviction makes several steps forward within a moment.
var writes = ask.Backoff{First: 25 * time.Millisecond, Last: 8 * time.Second}

// Options configure a Core. The zero Options have all defaults.
type Options struct {
	InFlight int // requests under way at most; 0: DefaultInFlight
	// Wall returns the wall-clock time, which is what statuses are written in; nil: that of Step.
	Wall func(now time.Time) time.Time
}

// Core decides about all EvictionRequests. It is not safe for concurrent use.
//
// It works by targets, not by objects: whatever is seen puts the pod that it is about into the
// queue, and decide makes at most one request about a pod from the newest state. The answer puts it
// into the queue again, until there is nothing left to do. So an event that is late, or comes
// twice, costs a look and changes nothing.
type Core struct {
	options Options
	now     time.Time // of the present Step
	actions []Action  // of the present Step

	targets     map[targetKey]*target // all pods with a request or an Eviction
	requests    table[*lifecyclev1alpha1.EvictionRequest]
	evictions   table[*lifecyclev1alpha1.Eviction]
	pods        int         // lists of pods that have begun
	seen        [kinds]bool // a list of the kind has been seen
	tickets     Ticket
	flights     map[Ticket]*target // requests under way; len is bounded by InFlight
	writtenKind map[Ticket]Action  // the same requests, to tell what an answer is about

	queue []*target // to be looked at, in this order; each is in it once
	// timers are when targets are to be looked at again. A target may have several; one that is due
	// too early changes nothing.
	timers agenda.Queue[*target]
	// refused counts the pods whose eviction was refused the last time.
	refused int
}

// New returns a Core that has seen nothing.
func New(options Options) *Core {
	if options.InFlight == 0 {
		options.InFlight = DefaultInFlight
	}
	c := &Core{options: options, targets: map[targetKey]*target{}, flights: map[Ticket]*target{}, writtenKind: map[Ticket]Action{}}
	c.requests = newTable(func(t *target) held[*lifecyclev1alpha1.EvictionRequest] { return t.requests }, c.look)
	c.evictions = newTable(func(t *target) held[*lifecyclev1alpha1.Eviction] { return t.evictions }, c.look)
	return c
}

// Step applies an event and returns the actions that follow from it and from the time. now must not
// go back. Nothing is decided before all three kinds have been listed: a request that was not seen
// yet would look withdrawn.
func (c *Core) Step(now time.Time, event Event) []Action {
	c.now, c.actions = now, nil

	switch e := event.(type) {
	case Listing:
		switch e.Kind {
		case Requests:
			c.requests.begin()
		case Evictions:
			c.evictions.begin()
		case Pods:
			c.pods++
		}
	case Listed:
		c.listed(e.Kind)

	case RequestSeen:
		c.seeRequest(e.Request)
	case RequestGone:
		c.requests.gone(e.Request)
	case EvictionSeen:
		c.seeEviction(e.Eviction)
	case EvictionGone:
		c.evictions.gone(e.Eviction)

	// Only pods that somebody wants to leave are followed.
	case PodSeen:
		if t := c.targets[targetKey{e.Pod.Name, e.Pod.UID}]; t != nil {
			t.setPod(&e.Pod, c.pods)
			c.look(t)
		}
	case PodGone:
		if t := c.targets[targetKey{e.Name, e.UID}]; t != nil {
			t.setPod(nil, 0)
			c.look(t)
		}

	case Answered:
		c.answered(e)
	}

	c.advance()
	return c.actions
}

// Wake returns when the next Tick is due if no event comes first.
func (c *Core) Wake() (at time.Time, ok bool) {
	return c.timers.Next()
}

// Settled reports whether all objects have been seen once, so that decisions are made.
func (c *Core) Settled() bool { return c.seen == [kinds]bool{true, true, true} }

// wall is the wall-clock time of the present Step.
func (c *Core) wall() time.Time {
	if c.options.Wall == nil {
		return c.now
	}
	return c.options.Wall(c.now)
}

// look has a target looked at in this Step or, if too many requests are under way, a later one.
func (c *Core) look(t *target) {
	if !t.queued {
		t.queued = true
		c.queue = append(c.queue, t)
	}
}

// wake has a target looked at later, or earlier than that.
func (c *Core) wake(t *target, at time.Time) {
	if t.wakes.IsZero() || at.Before(t.wakes) {
		t.wakes = at
		c.timers.Add(at, t)
	}
}

// advance looks at what is queued, as far as requests may be made. It ends for certain: a target
// that has a request under way is not decided, and one without makes at most one.
func (c *Core) advance() {
	for at, ok := c.timers.Next(); ok && !at.After(c.now); at, ok = c.timers.Next() {
		t := c.timers.Take()
		t.wakes = time.Time{}
		c.look(t)
	}
	for c.Settled() && len(c.queue) > 0 && len(c.flights) < c.options.InFlight {
		t := c.queue[0]
		c.queue = c.queue[1:]
		t.queued = false
		if t.ticket == 0 {
			c.decide(t)
		}
	}
}

// do makes a request about an object of a target, or schedules it if one of the same kind was made
// just before, and reports whether it was made. The target has no other request in flight: two
// writes of one object would conflict.
func (c *Core) do(t *target, kind string, object metav1.Object, action func(Ticket) Action) bool {
	key := kind
	if object != nil {
		key += " " + object.GetName()
	}
	pace := t.paces[key]
	if pace == nil {
		pace = &ask.Pace{}
		t.paces[key] = pace
	}
	if !pace.Ready(c.now) {
		c.wake(t, pace.Next)
		return false
	}
	delays := writes
	if kind == "evict" { // refusals have their own
		delays = ask.Backoff{First: 200 * time.Millisecond, Last: lastRetry}
	}
	pace.Sent(c.now, delays, string(t.uid)+key)

	c.tickets++
	t.ticket = c.tickets
	made := action(t.ticket)
	c.flights[t.ticket], c.writtenKind[t.ticket] = t, made
	c.actions = append(c.actions, made)
	return true
}

// answered takes in an answer: the object as it is after a write replaces what watches have shown
// of it, so that the next decision does not wait for them.
func (c *Core) answered(e Answered) {
	t, action := c.flights[e.Ticket], c.writtenKind[e.Ticket]
	if t == nil {
		return
	}
	delete(c.flights, e.Ticket)
	delete(c.writtenKind, e.Ticket)
	// The target may have its next request; look below decides on which.
	t.ticket = 0
	c.look(t)

	switch a := action.(type) {
	case Evict:
		c.evicted(t, e)
		return
	case ReadPod:
		if e.Outcome == OK || e.Outcome == NotFound {
			t.setPod(e.Pod, c.pods)
		}
	case Delete:
		if e.Outcome == OK || e.Outcome == NotFound {
			c.evictions.gone(a.Eviction)
		}
	}

	switch written := e.Written.(type) {
	case *lifecyclev1alpha1.EvictionRequest:
		c.seeRequest(written)
	case *lifecyclev1alpha1.Eviction:
		c.seeEviction(written)
	}
}

// evicted handles the response to an eviction. One that was accepted is not repeated while the pod
// is being deleted. If the watch does not show that within assumedFor, the pod is read. Any other
// is tried again for as long as the pod is wanted to leave: a budget may allow it at any time.
func (c *Core) evicted(t *target, e Answered) {
	switch e.Outcome {
	case OK:
		c.forgetRefusals(t)
		t.said = evictedText
		if t.pod != nil {
			t.pod.Leaving, t.assumed = true, c.now
			c.wake(t, c.now.Add(assumedFor))
		}
		return
	case NotFound, Conflict: // another pod may have the name: it is read which
		t.pod = nil
	}

	if t.tries++; t.tries == 1 {
		c.refused++
	}
	t.said = e.Message
	// The more pods are refused, the longer each waits, so that together they ask no more than 50
	// times a second.
	longest := max(lastRetry, time.Duration(c.refused)*perRefused)
	refusals := ask.Backoff{First: firstRetry, Last: longest}
	t.notYet = c.now.Add(max(refusals.After(t.tries, string(t.uid)), min(e.RetryAfter, lastRetry)))
}

// forgetRefusals ends the row of refused evictions, and no longer counts the pod among those that
// are refused.
func (c *Core) forgetRefusals(t *target) {
	if t.tries > 0 {
		c.refused--
	}
	t.tries, t.notYet = 0, time.Time{}
}

// seeRequest takes in a request as a watch, a list or the answer to a write shows it.
func (c *Core) seeRequest(r *lifecyclev1alpha1.EvictionRequest) {
	if of := r.Spec.Target.Pod; of != nil { // no version of the API has another target
		c.requests.see(r, c.targetOf(r.Namespace, of.Name, of.UID))
	}
}

// seeEviction does so for an Eviction.
func (c *Core) seeEviction(e *lifecyclev1alpha1.Eviction) {
	if of := e.Spec.Target.Pod; of != nil {
		c.evictions.see(e, c.targetOf(e.Namespace, of.Name, of.UID))
	}
}

// targetOf returns the target for a pod, and makes it if there is none. decide forgets it when
// neither requests nor Evictions are left.
func (c *Core) targetOf(namespace, name string, uid types.UID) *target {
	key := targetKey{types.NamespacedName{Namespace: namespace, Name: name}, uid}
	t := c.targets[key]
	if t == nil {
		t = &target{targetKey: key, requests: held[*lifecyclev1alpha1.EvictionRequest]{}, evictions: held[*lifecyclev1alpha1.Eviction]{},
			paces: map[string]*ask.Pace{}}
		c.targets[key] = t
	}
	return t
}

// listed drops what a list did not show. All targets are looked at: after the last of the three
// lists this begins the work.
func (c *Core) listed(kind Kind) {
	c.seen[kind] = true
	switch kind {
	case Requests:
		c.requests.sweep()
	case Evictions:
		c.evictions.sweep()
	}
	for _, key := range slices.SortedFunc(maps.Keys(c.targets), compareKeys) {
		t := c.targets[key]
		// A list that does not have the pod may be older than the pod: only a live read says that
		// it is gone.
		if kind == Pods && t.pod != nil && t.podRound != c.pods {
			t.pod = nil // it is read
		}
		c.look(t)
	}
}
