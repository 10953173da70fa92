// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/evictionrequest"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// Begin is the start time of every world.
var Begin = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// World is an API server with EvictionRequests, Evictions and pods in virtual time, the kubelets,
// and the process running the core. It refuses evictions like a real API server with a disruption
// budget.
type World struct {
	*virtual.Time
	Process *virtual.Process[evictionrequest.Event, evictionrequest.Action]
	// Line carries the core's requests. The kinds of requests are the names of the action types.
	Line    virtual.Line[evictionrequest.Event, evictionrequest.Action]
	Watches [evictionrequest.Pods + 1]*virtual.Watch

	// Policy, if set, changes each object before the API server stores it.
	Policy func(next metav1.Object)
	// Validate, if set, refuses a write like the API server.
	Validate func(next, before metav1.Object) error
	// Refuses holds the messages with which the Eviction API refuses pods, by pod name, as if a
	// disruption budget did not allow their evictions.
	Refuses map[string]string
	// Evicted counts the evictions that were carried out, by UID.
	Evicted map[types.UID]int

	Grace time.Duration // grace period of pods
	Wrong []string      // wrong evictions

	objects  map[string]metav1.Object // by keyOf; stored objects are replaced, never changed
	versions int                      // the last resource version
	blind    time.Time                // end of the period in which changes are not delivered
	// withdrawn is the time a request for a pod was last withdrawn or deleted.
	withdrawn map[types.UID]time.Time
}

// New returns an empty world.
func New(seed uint64) *World {
	w := &World{
		Time: virtual.NewTime(Begin, seed, 44), Refuses: map[string]string{}, Evicted: map[types.UID]int{}, Grace: 2 * time.Second,
		objects: map[string]metav1.Object{}, withdrawn: map[types.UID]time.Time{},
	}
	w.Process = &virtual.Process[evictionrequest.Event, evictionrequest.Action]{
		Time: w.Time, Tick: evictionrequest.Tick{}, Do: w.send,
		New: func() virtual.Core[evictionrequest.Event, evictionrequest.Action] {
			w.blind = w.Now
			return evictionrequest.New(evictionrequest.Options{Wall: w.Process.Wall})
		},
	}
	w.Process.Add()
	w.Line.Process, w.Line.Least, w.Line.Most = w.Process, 10*time.Millisecond, 10*time.Millisecond
	for kind := range w.Watches {
		w.Watches[kind] = virtual.NewWatch(w.Process, 20*time.Millisecond, func() { w.list(evictionrequest.Kind(kind)) })
	}
	return w
}

// keyOf identifies an object by its type, namespace and name.
func keyOf(o metav1.Object) string { return fmt.Sprintf("%T/%s/%s", o, o.GetNamespace(), o.GetName()) }

// Relist relists everything for the core, as after an expired watch.
func (w *World) Relist() {
	for kind := range evictionrequest.Pods + 1 {
		w.list(kind)
	}
}

// list shows the core all objects of a kind.
func (w *World) list(kind evictionrequest.Kind) {
	w.Process.Step(evictionrequest.Listing{Kind: kind})
	for _, key := range slices.Sorted(maps.Keys(w.objects)) {
		if o := w.objects[key]; kindOf(o) == kind {
			w.Process.Step(seenOf(o))
		}
	}
	w.Process.Step(evictionrequest.Listed{Kind: kind})
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
	if w.Policy != nil {
		w.Policy(o)
	}
	w.objects[keyOf(o)] = o
	w.show(o, seenOf(o))
}

// remove deletes an object.
func (w *World) remove(o metav1.Object) {
	delete(w.objects, keyOf(o))
	w.show(o, goneOf(o))
}

// show delivers a change to the process.
func (w *World) show(o metav1.Object, e evictionrequest.Event) {
	w.Watches[kindOf(o)].Show(func() { w.Process.Step(e) })
}

// Cut breaks all watches for a time. Changes in the meantime are delivered by a list.
func (w *World) Cut(d time.Duration) {
	if end := w.Now.Add(d); end.After(w.blind) { // the process may be frozen for longer
		w.blind = end
	}
	for _, watch := range w.Watches {
		watch.Cut(d, true)
	}
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
