// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package requesttest is an API server with EvictionRequests, Evictions and pods in virtual time,
// for tests of the core: it delays and loses responses, delays events, and refuses evictions like a
// real one with a disruption budget. The core may be killed at any request.
package requesttest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/world/agenda"
)

// Begin is the start time of every world.
var Begin = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// Faults are the server's failures. The zero Faults is a server that always responds, and delivers
// changes after 20 ms.
type Faults struct {
	Lost, Unanswered float64       // probabilities of losing a request, and of losing the response to a request that was carried out
	Late             time.Duration // maximum delay until a change is shown
	Down             bool          // all requests are lost
}

// World is the API server, the kubelets, and the process running the core.
type World struct {
	Now    time.Time
	Faults Faults
	Trace  func(at time.Time, what string)
	// RespondTo, if set, returns the response to each request, and decides whether to carry it out.
	RespondTo func(a evictionrequest.Action, do func() evictionrequest.Answered) evictionrequest.Answered
	// Blind stops the watches from delivering changes.
	Blind bool
	// Validate, if set, refuses a write like the API server.
	Validate func(next, before metav1.Object) error
	// Refuses holds the messages with which the Eviction API refuses pods, by pod name, as if a
	// disruption budget did not allow their evictions.
	Refuses map[string]string
	// Evicted counts the evictions that were carried out, by UID.
	Evicted map[types.UID]int
	// Requests counts the requests to the server, by type.
	Requests map[string]int
	// KillAt kills the process at its nth request from now; 0 means never. With KillAfter, that
	// request is still carried out.
	KillAt    int
	KillAfter bool

	Grace time.Duration // grace period of pods
	Wrong []string      // wrong evictions

	random   *rand.Rand               // seeded source of all random choices
	objects  map[string]metav1.Object // by keyOf; stored objects are replaced, never changed
	versions int                      // the last resource version
	agenda   agenda.Agenda            // what will happen, by time
	core     *evictionrequest.Core    // nil if no process runs
	life     int                      // number of the process; responses for earlier processes are lost
	options  evictionrequest.Options
	shownTo  map[string]time.Time // delivery time of the last change, by kind; keeps changes in order
	cut      time.Time            // end of the period in which changes are not delivered
	// withdrawn is the time a request for a pod was last withdrawn or deleted.
	withdrawn map[types.UID]time.Time
}

// New returns an empty world.
func New(seed uint64) *World {
	return &World{
		Now: Begin, Refuses: map[string]string{}, Evicted: map[types.UID]int{}, Requests: map[string]int{}, Grace: 2 * time.Second,
		random: rand.New(rand.NewPCG(seed, 44)), objects: map[string]metav1.Object{}, shownTo: map[string]time.Time{},
		withdrawn: map[types.UID]time.Time{},
	}
}

// keyOf identifies an object by its type, namespace and name.
func keyOf(o metav1.Object) string { return fmt.Sprintf("%T/%s/%s", o, o.GetNamespace(), o.GetName()) }

// say adds an event to the trace.
func (w *World) say(format string, args ...any) {
	if w.Trace != nil {
		w.Trace(w.Now, fmt.Sprintf(format, args...))
	}
}

// Start starts the process, which lists everything.
func (w *World) Start() {
	w.life++
	w.cut = w.Now
	w.core = evictionrequest.New(w.options)
	w.Relist()
}

// Kill ends the process. Requests in flight are still carried out, but their responses are lost.
func (w *World) Kill() { w.life, w.core, w.KillAt = w.life+1, nil, 0 }

// Running reports whether the process runs.
func (w *World) Running() bool { return w.core != nil }

// Relist relists everything for the core, as after an expired watch. The kinds are listed one after
// the other, in one moment.
func (w *World) Relist() {
	for kind := range evictionrequest.Pods + 1 {
		w.step(evictionrequest.Listing{Kind: kind})
		for _, key := range slices.Sorted(maps.Keys(w.objects)) {
			if o := w.objects[key]; kindOf(o) == kind {
				w.step(seenOf(o))
			}
		}
		w.step(evictionrequest.Listed{Kind: kind})
	}
}

// kindOf returns the core's kind of the object.
func kindOf(o metav1.Object) evictionrequest.Kind {
	switch o.(type) {
	case *lifecyclev1alpha1.EvictionRequest:
		return evictionrequest.Requests
	case *lifecyclev1alpha1.Eviction:
		return evictionrequest.Evictions
	}
	return evictionrequest.Pods
}

// seenOf returns the event for a new or changed object.
func seenOf(o metav1.Object) evictionrequest.Event {
	switch o := o.(type) {
	case *lifecyclev1alpha1.EvictionRequest:
		return evictionrequest.RequestSeen{Request: o}
	case *lifecyclev1alpha1.Eviction:
		return evictionrequest.EvictionSeen{Eviction: o}
	}
	return evictionrequest.PodSeen{Pod: evictionrequest.PodOf(o.(*v1.Pod))}
}

// goneOf returns the event for a deleted object.
func goneOf(o metav1.Object) evictionrequest.Event {
	switch o := o.(type) {
	case *lifecyclev1alpha1.EvictionRequest:
		return evictionrequest.RequestGone{Request: o}
	case *lifecyclev1alpha1.Eviction:
		return evictionrequest.EvictionGone{Eviction: o}
	}
	return evictionrequest.PodGone{Name: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}, UID: o.GetUID()}
}

// step passes an event to the core, and sends its requests. Without a process, it does nothing.
func (w *World) step(e evictionrequest.Event) {
	if w.core == nil {
		return
	}
	for _, a := range w.core.Step(w.Now, e) {
		w.send(a)
	}
}

// after schedules a call.
func (w *World) after(d time.Duration, do func()) { w.agenda.Add(w.Now.Add(d), do) }

// Run lets time pass, including scheduled events and the core's Ticks. Events at the same moment as
// a Tick are first.
func (w *World) Run(d time.Duration) {
	until := w.Now.Add(d)
	for steps := 0; ; steps++ {
		if steps > 1_000_000 {
			// Each step passes time or makes a request. This number of steps in one call means that
			// the core endlessly reacts to its own requests.
			panic("the core does not come to rest")
		}
		first, some := w.agenda.Next()
		wake, wakes := time.Time{}, false
		if w.core != nil {
			wake, wakes = w.core.Wake()
		}

		switch {
		case some && !first.After(until) && (!wakes || !wake.Before(first)):
			w.advanceTo(first)
			w.agenda.RunFirst()
		case wakes && !wake.After(until):
			w.advanceTo(wake)
			w.step(evictionrequest.Tick{})
		default:
			w.Now = until
			return
		}
	}
}

// advanceTo sets the time, which never goes back.
func (w *World) advanceTo(at time.Time) {
	if at.After(w.Now) {
		w.Now = at
	}
}

// write stores an object; the process observes it a moment later.
func (w *World) write(o metav1.Object) {
	w.versions++
	o.SetResourceVersion(strconv.Itoa(w.versions))
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("%s-%d", o.GetName(), w.versions)))
	}
	if made := o.GetCreationTimestamp(); made.IsZero() {
		o.SetCreationTimestamp(metav1.NewTime(w.Now.Truncate(time.Second)))
	}
	w.objects[keyOf(o)] = o
	w.show(o, seenOf(o))
}

// remove deletes an object.
func (w *World) remove(o metav1.Object) {
	delete(w.objects, keyOf(o))
	w.show(o, goneOf(o))
}

// show delivers a change to the process, after previous ones of the same kind. Changes while the
// watches are cut are not delivered; the list at the end of the cut contains their outcome.
func (w *World) show(o metav1.Object, e evictionrequest.Event) {
	late := 20 * time.Millisecond
	if w.Faults.Late > 0 {
		late += time.Duration(w.random.Int64N(int64(w.Faults.Late)))
	}
	kind, at := fmt.Sprintf("%T", o), w.Now.Add(late)
	if before := w.shownTo[kind]; at.Before(before) {
		at = before
	}
	w.shownTo[kind] = at
	life := w.life
	w.after(at.Sub(w.Now), func() {
		if life == w.life && !w.Blind && !w.Now.Before(w.cut) {
			w.step(e)
		}
	})
}

// Cut breaks all watches for a time. Changes in the meantime are delivered by a list.
func (w *World) Cut(d time.Duration) {
	life := w.life
	w.cut = w.Now.Add(d)
	w.after(d, func() {
		if life == w.life && w.core != nil {
			w.Relist()
		}
	})
}

// named returns the object of like's type with that name, or nil.
func named[T metav1.Object](w *World, like T, name string) (found T) {
	like.SetNamespace("default")
	like.SetName(name)
	found, _ = w.objects[keyOf(like)].(T)
	return found
}

// Pod returns a pod, or nil.
func (w *World) Pod(name string) *v1.Pod { return named(w, &v1.Pod{}, name) }

// Request returns a request, or nil.
func (w *World) Request(name string) *lifecyclev1alpha1.EvictionRequest {
	return named(w, &lifecyclev1alpha1.EvictionRequest{}, name)
}

// All returns all objects of a type, by name.
func All[T metav1.Object](w *World) (list []T) {
	for _, key := range slices.Sorted(maps.Keys(w.objects)) {
		if o, ok := w.objects[key].(T); ok {
			list = append(list, o)
		}
	}
	return list
}
