// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// held contains the objects of one kind for one target, by name.
type held[T metav1.Object] map[types.NamespacedName]T

// table indexes all objects of one kind: EvictionRequests or Evictions. The objects are stored in
// their targets (held); the table maps each name to its target, so that an object recreated for
// another pod is removed from the first one.
type table[T metav1.Object] struct {
	at    map[types.NamespacedName]*target
	round map[types.NamespacedName]int // the last list containing an object
	list  int                          // the current or last list
	going bool                         // a list is in progress
	held  func(t *target) held[T]
	look  func(t *target) // queues a target after a change of its objects
}

// newTable returns an empty table. heldBy returns a target's objects of the kind.
func newTable[T metav1.Object](heldBy func(t *target) held[T], look func(t *target)) table[T] {
	return table[T]{at: map[types.NamespacedName]*target{}, round: map[types.NamespacedName]int{}, held: heldBy, look: look}
}

// see stores an object of a target. A recreated object may have another target than before.
func (b *table[T]) see(o T, t *target) {
	name := nameOf(o)
	if before := b.at[name]; before != nil && before != t {
		b.remove(name)
		b.look(before)
	}
	// During a list, objects are accepted even if they look older: versions may have been reset by
	// a restored backup.
	if there, ok := b.held(t)[name]; !ok || b.going || !isOlder(o, there) {
		b.held(t)[name], b.round[name] = o, b.list
	}
	b.at[name] = t
	b.look(t)
}

// gone removes an object, unless another object has its name now.
func (b *table[T]) gone(o T) {
	if t := b.at[nameOf(o)]; b.has(o) {
		b.remove(nameOf(o))
		b.look(t)
	}
}

// has reports whether the object exists, in any version.
func (b *table[T]) has(o T) bool {
	t := b.at[nameOf(o)]
	return t != nil && b.held(t)[nameOf(o)].GetUID() == o.GetUID()
}

// remove deletes the object of that name, which must exist.
func (b *table[T]) remove(name types.NamespacedName) {
	delete(b.held(b.at[name]), name)
	delete(b.at, name)
	delete(b.round, name)
}

// begin starts a list.
func (b *table[T]) begin() { b.list, b.going = b.list+1, true }

// sweep ends a list: objects missing from it were deleted. The caller queues all targets.
func (b *table[T]) sweep() {
	b.going = false
	for name, round := range b.round {
		if round != b.list {
			b.remove(name)
		}
	}
}

// isOlder reports whether an object is an earlier version than the stored one: the response to a
// write may precede the corresponding watch events.
func isOlder(o, held metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), held.GetResourceVersion())
	return err == nil && order < 0
}

// nameOf returns the namespace and name of an object.
func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
