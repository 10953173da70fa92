// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// mirror turns lists and watches of one kind into changes.
type mirror interface {
	// beginList and endList enclose a list. Watch events may arrive in between.
	beginList()
	endList()
	// applySeen and applyGone ignore objects of types other than the mirror's type.
	applySeen(object metav1.Object)
	applyGone(last metav1.Object)
	isListing() bool // reports whether a list has begun and not ended
	forgetStates()
}

// objectKind processes the changes of the objects of one kind.
type objectKind[T metav1.Object] interface {
	// set processes an added or changed object. old is its previous state, if kept.
	set(object, old T)
	// remove processes a deletion. last is the last state of the object, if known.
	remove(name cluster.Name, uid types.UID, last T)
}

// mirrored is the mirror of one kind. It turns a list into the changes since the previous list,
// including changes missed by a watch.
type mirrored[T metav1.Object] struct {
	*common
	events *clusterEvents
	kind   queue.Resource
	of     objectKind[T]

	known map[cluster.Name]types.UID
	most  int // largest length of known; see cluster.Shrunk
	// kept holds the last state of each object while out-of-tree plugins read the objects of
	// events.
	kept map[cluster.Name]T
	// single, if set, copies an object out of its list; otherwise a reference to the object would
	// keep the whole list in memory.
	single func(object T) T
	// shown holds the objects of the current list so far; nil between lists.
	shown map[cluster.Name]bool
}

// newMirror returns the mirror of a kind.
func newMirror[T metav1.Object](c *common, news *clusterEvents, kind queue.Resource, of objectKind[T]) *mirrored[T] {
	return &mirrored[T]{common: c, events: news, kind: kind, of: of, known: map[cluster.Name]types.UID{}, kept: map[cluster.Name]T{}}
}

func (m *mirrored[T]) beginList()      { m.shown = map[cluster.Name]bool{} }
func (m *mirrored[T]) isListing() bool { return m.shown != nil }

// forgetStates drops the kept states: no plugin needs them any longer, and they would become stale.
func (m *mirrored[T]) forgetStates() { clear(m.kept) }

// endList forgets the objects missing from the list, sorted by name so that the order of the
// resulting actions is fixed.
func (m *mirrored[T]) endList() {
	var missing []cluster.Name
	for name := range m.known {
		if !m.shown[name] {
			missing = append(missing, name)
		}
	}
	slices.SortFunc(missing, compareNames)

	for _, name := range missing {
		var last T
		m.forgetObject(name, m.known[name], last)
	}
	m.shown = nil
}

// applySeen processes an object. A new UID implies the deletion of the previous object with its
// name.
func (m *mirrored[T]) applySeen(o metav1.Object) {
	object, ok := o.(T)
	if !ok {
		return
	}

	began := m.clock()
	name, action := nameOf(object), queue.Add
	old := m.kept[name]
	if uid, known := m.known[name]; known {
		action = queue.Update
		// The deletion of the previous object was missed, which can happen between two lists.
		if uid != object.GetUID() {
			m.of.remove(name, uid, old)
			var none T
			old = none
		}
	}

	m.known[name] = object.GetUID()
	m.known = cluster.Shrunk(m.known, &m.most)
	if m.shown != nil {
		m.shown[name] = true
		// This must precede keeping a reference to the object.
		if m.single != nil {
			object = m.single(object)
		}
	}
	if m.events.outOfTree {
		m.kept[name] = object
	}

	m.of.set(object, old)
	m.observer().Handled(m.kind, action, m.clock().Sub(began))
}

// applyGone processes the deletion of an object. A late event is ignored if another object has
// taken the name.
func (m *mirrored[T]) applyGone(o metav1.Object) {
	object, ok := o.(T)
	if !ok {
		return
	}
	began := m.clock()
	m.forgetObject(nameOf(object), object.GetUID(), object)
	m.observer().Handled(m.kind, queue.Delete, m.clock().Sub(began))
}

// forgetObject forgets an object, unless another object has taken its name.
func (m *mirrored[T]) forgetObject(name cluster.Name, uid types.UID, last T) {
	if m.known[name] == uid {
		delete(m.known, name)
		m.known = cluster.Shrunk(m.known, &m.most)
		delete(m.kept, name)
		m.of.remove(name, uid, last)
	}
}
