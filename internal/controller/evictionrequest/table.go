package evictionrequest

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// held are the objects of one kind that are about a target, by name.
type held[T metav1.Object] map[types.NamespacedName]T

// table has all objects of one kind: EvictionRequests, or Evictions. The objects themselves stand
// with their targets (held); the table knows where each name is, so that an object that was made
// anew for another pod leaves the first one.
type table[T metav1.Object] struct {
	at    map[types.NamespacedName]*target
	round map[types.NamespacedName]int // of the last list that showed an object
	list  int                          // the present or last one
	going bool                         // a list is being seen
	of    func(t *target) held[T]
	look  func(t *target) // has a target looked at whose objects have changed
}

// newTable returns a table without objects. of tells where a target has its objects of the kind.
func newTable[T metav1.Object](of func(t *target) held[T], look func(t *target)) table[T] {
	return table[T]{at: map[types.NamespacedName]*target{}, round: map[types.NamespacedName]int{}, of: of, look: look}
}

// see takes an object in, which is about a target: since it was made anew, maybe about another one.
func (b *table[T]) see(o T, t *target) {
	name := nameOf(o)
	if before := b.at[name]; before != nil && before != t {
		b.remove(name)
		b.look(before)
	}
	// While a list is seen, what it shows is taken even if it looks older: the versions may have
	// begun anew, from a backup.
	if there, ok := b.of(t)[name]; !ok || b.going || !isOlder(o, there) {
		b.of(t)[name], b.round[name] = o, b.list
	}
	b.at[name] = t
	b.look(t)
}

// gone removes an object, unless another one has its name by now.
func (b *table[T]) gone(o T) {
	if t := b.at[nameOf(o)]; t != nil && b.of(t)[nameOf(o)].GetUID() == o.GetUID() {
		b.remove(nameOf(o))
		b.look(t)
	}
}

// remove takes out the object of that name, which must be there.
func (b *table[T]) remove(name types.NamespacedName) {
	delete(b.of(b.at[name]), name)
	delete(b.at, name)
	delete(b.round, name)
}

// begin begins a list.
func (b *table[T]) begin() { b.list, b.going = b.list+1, true }

// sweep ends a list: what it did not show is gone. The caller has all targets looked at.
func (b *table[T]) sweep() {
	b.going = false
	for name, round := range b.round {
		if round != b.list {
			b.remove(name)
		}
	}
}

// isOlder reports whether an object is an earlier version than the one that is held: the answer to
// a write may come before what watches showed until then.
func isOlder(o, held metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), held.GetResourceVersion())
	return err == nil && order < 0
}

// nameOf is the object's namespace and name.
func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
