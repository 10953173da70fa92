// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest

import (
	"cmp"
	"maps"
	"slices"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/agenda"
)

const (
	// DefaultInFlight is the default bound on concurrent requests.
	DefaultInFlight = 16
	// Delays between refused evictions of a pod.
	firstRetry, lastRetry = time.Second, 5 * time.Second
	// assumedFor is the time for which an accepted eviction is trusted before a watch confirms it.
	assumedFor = 30 * time.Second
	// perRefused times the number of refused pods is the maximum delay, if that exceeds lastRetry:
	// thousands of refused pods cause at most 50 evictions per second in total.
	perRefused = 20 * time.Millisecond
)

// writes spaces requests of one kind for one object, whatever the responses are. The first delays
// are short, because an Eviction takes several steps within a moment.
var writes = pacing.Backoff{First: 25 * time.Millisecond, Last: 8 * time.Second}

// Options configure a Core. The zero value selects all defaults.
type Options struct {
	InFlight int // bound on concurrent requests; 0 means DefaultInFlight
	// Wall returns the wall-clock time written into statuses; nil uses the time of Step.
	Wall pacing.Wall
}

// Core decides about all EvictionRequests. It is not safe for concurrent use.
//
// It works by target, not by object: each event queues the affected pod, and decide makes at most
// one request for a pod from the newest state. The response queues the pod again until no work
// remains. So a late or duplicate event costs one pass over its target and changes nothing.
type Core struct {
	options Options
	now     time.Time // time of the current Step
	actions []Action  // actions of the current Step

	targets     map[targetKey]*target // all pods with a request or an Eviction
	requests    table[*lifecyclev1alpha1.EvictionRequest]
	evictions   table[*lifecyclev1alpha1.Eviction]
	pods        int         // number of pod lists begun
	seen        [kinds]bool // kinds listed at least once
	tickets     response.Ticket
	flights     map[response.Ticket]*target // requests in flight, bounded by InFlight
	writtenKind map[response.Ticket]Action  // the actions of these requests, to interpret the responses

	queue []*target // targets to decide, in this order and without duplicates
	// timers schedule targets. A target may have several timers; a superfluous one changes nothing.
	timers agenda.Queue[*target]
	// refused counts the pods for which the last eviction was refused.
	refused int
}

// New returns a Core without any objects.
func New(options Options) *Core {
	options.InFlight = cmp.Or(options.InFlight, DefaultInFlight)
	c := &Core{options: options, targets: map[targetKey]*target{}, flights: map[response.Ticket]*target{}, writtenKind: map[response.Ticket]Action{}}
	c.requests = newTable(func(t *target) held[*lifecyclev1alpha1.EvictionRequest] { return t.requests }, c.look)
	c.evictions = newTable(func(t *target) held[*lifecyclev1alpha1.Eviction] { return t.evictions }, c.look)
	return c
}

// Step applies an event and returns the resulting actions. now must not decrease. Nothing is
// decided before all three kinds have been listed, because an unlisted request would look
// withdrawn.
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

	// Only pods with a request or an Eviction are followed.
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

// Wake returns the time of the next Tick if no event arrives first.
func (c *Core) Wake() (at time.Time, ok bool) {
	return c.timers.Next()
}

// Settled reports whether all kinds have been listed, so that decisions are made.
func (c *Core) Settled() bool { return c.seen == [kinds]bool{true, true, true} }

// wall returns the wall-clock time of the current Step.
func (c *Core) wall() time.Time {
	return c.options.Wall.At(c.now)
}

// look queues a target for this Step or, with too many requests in flight, for a later one.
func (c *Core) look(t *target) {
	if !t.queued {
		t.queued = true
		c.queue = append(c.queue, t)
	}
}

// wake schedules a target, or moves its timer forward.
func (c *Core) wake(t *target, at time.Time) {
	if t.wakes.IsZero() || at.Before(t.wakes) {
		t.wakes = at
		c.timers.Add(at, t)
	}
}

// advance decides queued targets while requests may be made. It terminates: a target with a request
// in flight is skipped, and each other target makes at most one request.
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

// do makes a request about an object of a target, and reports whether it was made. If a request of
// the same kind was made just before, do schedules the target instead. The target must not have
// another request in flight, because two writes of one object would conflict.
func (c *Core) do(t *target, kind string, object metav1.Object, action func(response.Ticket) Action) bool {
	key := kind
	if object != nil {
		key += " " + object.GetName()
	}
	pace := t.paces[key]
	if pace == nil {
		maps.DeleteFunc(t.paces, func(_ string, p *pacing.Pace) bool { return c.now.Sub(p.Next) >= keptFor })
		pace = &pacing.Pace{}
		t.paces[key] = pace
	}
	if !pace.Ready(c.now) {
		c.wake(t, pace.Next)
		return false
	}
	delays := writes
	if kind == "evict" { // refused evictions have their own delays
		delays = pacing.Backoff{First: 200 * time.Millisecond, Last: lastRetry}
	}
	pace.Sent(c.now, delays, string(t.uid)+key)

	c.tickets++
	t.ticket, t.sent, t.pace = c.tickets, c.now, pace
	made := action(t.ticket)
	c.flights[t.ticket], c.writtenKind[t.ticket] = t, made
	c.actions = append(c.actions, made)
	return true
}

// answered handles a response. The returned object replaces the watched one, so that the next
// decision does not wait for the watch.
func (c *Core) answered(e Answered) {
	t, action := c.flights[e.Ticket], c.writtenKind[e.Ticket]
	if t == nil {
		return
	}
	delete(c.flights, e.Ticket)
	delete(c.writtenKind, e.Ticket)
	// The target may make its next request, chosen by decide.
	t.ticket = 0
	t.pace.Delay(c.now.Add(min(e.RetryAfter, lastRetry)))
	c.look(t)

	switch action.(type) {
	case Evict:
		c.evicted(t, e)
		return
	case ReadPod:
		if e.Outcome == response.OK || e.Outcome == response.Gone {
			t.setPod(e.Pod, c.pods)
		}
	case Delete:
		// A watch shows the end of the Eviction. If none does, the Eviction has a finalizer, or the
		// response had another cause, such as a 404 of a server that is starting.
		if e.Outcome == response.OK || e.Outcome == response.Gone {
			t.pace.Delay(c.now.Add(assumedFor))
		}
	}

	// If the watch has shown the deletion before the response, the object stays deleted.
	_, created := action.(Create)
	switch written := e.Written.(type) {
	case *lifecyclev1alpha1.EvictionRequest:
		if c.requests.has(written) {
			c.seeRequest(written)
		}
	case *lifecyclev1alpha1.Eviction:
		if created || c.evictions.has(written) {
			c.seeEviction(written)
		}
	}
}

// evicted handles the response to an eviction. An accepted eviction is not repeated while the pod
// is terminating. If the watch does not confirm the termination within assumedFor, the pod is read.
// Any other response leads to a retry for as long as the eviction is requested, because a budget
// may allow it at any time.
func (c *Core) evicted(t *target, e Answered) {
	switch e.Outcome {
	case response.OK:
		c.forgetRefusals(t)
		t.said = evictedText
		if t.pod != nil {
			t.pod.Leaving, t.assumed = true, c.now
		}
		return
	case response.Gone, response.Conflict: // another pod may have the name, so the pod is read
		t.pod = nil
	}

	if t.tries++; t.tries == 1 {
		c.refused++
	}
	t.said = e.Message
	// The delay grows with the number of refused pods, so that together they cause at most 50
	// evictions per second.
	longest := max(lastRetry, time.Duration(c.refused)*perRefused)
	refusals := pacing.Backoff{First: firstRetry, Last: longest}
	t.notYet = c.now.Add(refusals.After(t.tries, string(t.uid)))
}

// forgetRefusals ends a series of refused evictions and removes the pod from the count of refused
// pods.
func (c *Core) forgetRefusals(t *target) {
	if t.tries > 0 {
		c.refused--
	}
	t.tries, t.notYet = 0, time.Time{}
}

// seeRequest applies a request from a watch, a list or the response to a write.
func (c *Core) seeRequest(r *lifecyclev1alpha1.EvictionRequest) {
	if of := r.Spec.Target.Pod; of != nil { // the API has no other kind of target
		c.requests.see(r, c.targetOf(r.Namespace, of.Name, of.UID))
	}
}

// seeEviction applies an Eviction from a watch, a list or the response to a write.
func (c *Core) seeEviction(e *lifecyclev1alpha1.Eviction) {
	if of := e.Spec.Target.Pod; of != nil {
		c.evictions.see(e, c.targetOf(e.Namespace, of.Name, of.UID))
	}
}

// targetOf returns the target for a pod and creates it if needed. decide removes targets without
// requests and Evictions.
func (c *Core) targetOf(namespace, name string, uid types.UID) *target {
	key := targetKey{types.NamespacedName{Namespace: namespace, Name: name}, uid}
	t := c.targets[key]
	if t == nil {
		t = &target{targetKey: key, requests: held[*lifecyclev1alpha1.EvictionRequest]{}, evictions: held[*lifecyclev1alpha1.Eviction]{},
			paces: map[string]*pacing.Pace{}}
		c.targets[key] = t
	}
	return t
}

// listed drops objects missing from a list. All targets are queued: after the last of the three
// lists this starts the work.
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
		// A list without the pod may be older than the pod: only a live read proves its absence.
		if kind == Pods && t.pod != nil && t.podRound != c.pods {
			t.pod = nil // to be read
		}
		c.look(t)
	}
}
