// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// table holds the objects of one kind: the objects of base, with the changes in over. In the
// example, b was changed, c was deleted, and d was added:
//
//	base  a  b  c          in order, and never changed: shared by forks
//	over     b' .  d       the later changes
//	      a  b'    d       yielded by All
//
// When there are many changes, they are merged with the objects of base into a new base.
type table struct {
	base *base
	over map[cluster.Name]metav1.Object // replaced objects; nil if deleted
	// adopted holds, for each owner, the names of its present or former pods among the changes.
	adopted map[rules.Owner]map[cluster.Name]bool
	ordered []metav1.Object // all objects in order; nil if not computed
}

// base is a list of objects of one kind, by namespace and name. It is shared by forks, possibly on
// several goroutines. Each index is created on first use.
type base struct {
	list    []metav1.Object
	index   func() map[cluster.Name]metav1.Object
	byOwner func() map[rules.Owner][]cluster.Name
}

// leastOver is the number of changes kept apart from base, even if base has fewer objects.
const leastOver = 64

// newTable returns a table of these objects. It keeps and sorts the list.
func newTable(list []metav1.Object) *table {
	// The sort is stable, so that of two objects with the same name the later one can be
	// identified.
	slices.SortStableFunc(list, compareNames)
	kept := list[:0]
	for i, object := range list {
		if i+1 == len(list) || compareNames(object, list[i+1]) != 0 {
			kept = append(kept, object)
		}
	}
	return &table{base: newBase(kept)}
}

// newBase returns a base of an ordered list, which must not be changed any more.
func newBase(list []metav1.Object) *base {
	return &base{
		list: list,
		index: sync.OnceValue(func() map[cluster.Name]metav1.Object {
			index := make(map[cluster.Name]metav1.Object, len(list))
			for _, object := range list {
				index[nameOf(object)] = object
			}

			return index
		}),
		byOwner: sync.OnceValue(func() map[rules.Owner][]cluster.Name {
			owners := map[rules.Owner][]cluster.Name{}
			for _, object := range list {
				if owner := rules.OwnerOf(object); owner != (rules.Owner{}) {
					owners[owner] = append(owners[owner], nameOf(object))
				}
			}
			return owners
		}),
	}
}

// get returns the object of that name.
func (t *table) get(name cluster.Name) (object metav1.Object, ok bool) {
	if object, ok = t.over[name]; ok {
		return object, object != nil
	}
	object, ok = t.base.index()[name]
	return object, ok
}

// set replaces the object of that name; nil deletes it.
func (t *table) set(name cluster.Name, object metav1.Object) {
	if t.over == nil {
		t.over = map[cluster.Name]metav1.Object{}
	}
	t.over[name], t.ordered = object, nil
	if p, ok := object.(*v1.Pod); ok {
		t.adopt(p, name)
	}
	if len(t.over) > max(leastOver, len(t.base.list)) {
		*t = table{base: newBase(t.objects())}
	}
}

// adopt records the owner of a pod.
func (t *table) adopt(p *v1.Pod, name cluster.Name) {
	owner := rules.OwnerOf(p)
	if owner == (rules.Owner{}) {
		return
	}
	if t.adopted == nil {
		t.adopted = map[rules.Owner]map[cluster.Name]bool{}
	}
	if t.adopted[owner] == nil {
		t.adopted[owner] = map[cluster.Name]bool{}
	}
	t.adopted[owner][name] = true
}

// objects returns all objects by namespace and name. The list must not be changed, and is
// unaffected by later changes of the table.
func (t *table) objects() []metav1.Object {
	if t.ordered != nil {
		return t.ordered
	}
	if len(t.over) == 0 {
		return t.base.list
	}
	var came []metav1.Object
	for _, object := range t.over {
		if object != nil {
			came = append(came, object)
		}
	}
	slices.SortFunc(came, compareNames)

	merged := make([]metav1.Object, 0, len(t.base.list)+len(came))
	for _, object := range t.base.list {
		for len(came) > 0 && compareNames(came[0], object) < 0 {
			merged, came = append(merged, came[0]), came[1:]
		}
		if _, changed := t.over[nameOf(object)]; !changed {
			merged = append(merged, object)
		}
	}
	t.ordered = append(merged, came...)
	return t.ordered
}

// fork returns a table with the same objects, to be changed independently.
func (t *table) fork() *table {
	f := &table{base: t.base, over: maps.Clone(t.over), ordered: t.ordered}
	if t.adopted != nil {
		f.adopted = make(map[rules.Owner]map[cluster.Name]bool, len(t.adopted))
		for owner, names := range t.adopted {
			f.adopted[owner] = maps.Clone(names)
		}
	}
	return f
}

// Objects yields all objects, kind by kind, each in the order of All.
func (w *World) Objects() iter.Seq[metav1.Object] {
	return func(yield func(metav1.Object) bool) {
		for _, kind := range w.kinds() {
			for _, object := range w.tables[kind].objects() {
				if !yield(object) {
					return
				}
			}
		}
	}
}

// Get returns the object of that kind and name; ok reports whether it exists.
func Get[T metav1.Object](w *World, namespace, name string) (object T, ok bool) {
	t := w.tables[reflect.TypeFor[T]()]
	if t == nil {
		return object, false
	}
	if found, there := t.get(cluster.Name{Namespace: namespace, Name: name}); there {
		return found.(T), true
	}
	return object, false
}

// Same returns the current state of the object of the same kind and name; ok reports whether it
// exists.
func (w *World) Same(object metav1.Object) (same metav1.Object, ok bool) {
	return w.tableOf(object).get(nameOf(object))
}

// All yields the objects of a kind by namespace and name, in their state when the iteration begins.
// The world may be changed during the iteration.
func All[T metav1.Object](w *World) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, object := range listOf[T](w) {
			if !yield(object.(T)) {
				return
			}
		}
	}
}

// Has reports whether there is an object of a kind.
func Has[T metav1.Object](w *World) bool { return len(listOf[T](w)) > 0 }

// listOf returns the objects of a kind; see table.objects.
func listOf[T metav1.Object](w *World) []metav1.Object {
	if t := w.tables[reflect.TypeFor[T]()]; t != nil {
		return t.objects()
	}
	return nil
}

// InNamespace yields the objects of a kind in one namespace, by name, like All.
func InNamespace[T metav1.Object](w *World, namespace string) iter.Seq[T] {
	return func(yield func(T) bool) {
		list := listOf[T](w)
		first, _ := slices.BinarySearchFunc(list, namespace, func(o metav1.Object, namespace string) int {
			return cmp.Compare(o.GetNamespace(), namespace)
		})
		for _, object := range list[first:] {
			if object.GetNamespace() != namespace || !yield(object.(T)) {
				return
			}
		}
	}
}

// Replace replaces the objects of a kind in w by those of another world.
func Replace[T metav1.Object](w, with *World) {
	for object := range All[T](w) {
		if _, there := Get[T](with, object.GetNamespace(), object.GetName()); !there {
			w.Delete(object)
		}
	}
	for object := range All[T](with) {
		if is, there := Get[T](w, object.GetNamespace(), object.GetName()); !there || any(is) != any(object) {
			w.Put(object)
		}
	}
}

// PodsOf returns the pods controlled by an owner, by name.
func (w *World) PodsOf(owner rules.Owner) (pods []*v1.Pod) {
	t := w.tables[reflect.TypeFor[*v1.Pod]()]
	if t == nil || owner == (rules.Owner{}) {
		return nil
	}
	// Both lists may name pods that have since been deleted, or adopted by another owner.
	add := func(name cluster.Name) {
		if p, there := t.get(name); there && rules.OwnerOf(p) == owner {
			pods = append(pods, p.(*v1.Pod))
		}
	}
	for _, name := range t.base.byOwner()[owner] {
		if !t.adopted[owner][name] {
			add(name)
		}
	}
	for name := range t.adopted[owner] {
		add(name)
	}
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return compareNames(a, b) })
	return pods
}

// nameOf returns the key of an object in its table.
func nameOf(object metav1.Object) cluster.Name {
	return cluster.Name{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// compareNames orders objects of one kind by namespace and name.
func compareNames(a, b metav1.Object) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}
