// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
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

// tableKind is a kind whose objects are stored in a table of the cluster model. Changes of the
// objects may help pending pods.
type tableKind[T metav1.Object] struct {
	events   *clusterEvents
	table    *cluster.Table[T]
	resource queue.Resource
	convert  func(T) T          // returns the stored form of an object; nil: stored as observed
	gone     func(cluster.Name) // called before an object is removed; may be nil
}

func mirrorTable[T metav1.Object](h *clusterEvents, table *cluster.Table[T], resource queue.Resource) mirror {
	return mirrorAs(h, table, resource, nil, nil)
}

// mirrorAs is mirrorTable with the convert and gone of tableKind.
func mirrorAs[T metav1.Object](h *clusterEvents, table *cluster.Table[T], resource queue.Resource,
	convert func(T) T, gone func(cluster.Name)) mirror {
	return newMirror(h.common, h, resource, tableKind[T]{h, table, resource, convert, gone})
}

func (k tableKind[T]) set(object, _ T) {
	var was any
	if old, ok := k.table.Get(object.GetNamespace(), object.GetName()); ok {
		if sameVersion(old, object) { // listed again: later assumptions about the object are still valid
			return
		}
		was = old
	}
	if k.convert != nil {
		object = k.convert(object)
	}
	k.table.Set(object)
	k.events.objects = true
	k.events.objectChanged(k.resource, was, object)
}

func (k tableKind[T]) remove(n cluster.Name, _ types.UID, _ T) {
	if k.gone != nil {
		k.gone(n)
	}
	var was any
	if old, ok := k.table.Get(n.Namespace, n.Name); ok {
		was = old
	}
	k.table.Delete(n.Namespace, n.Name)
	k.events.objects = true
	k.events.objectChanged(k.resource, was, nil)
}

// parseSelector parses a claim's selector when the claim is observed rather than during an attempt,
// since the selector may be long.
func (h *clusterEvents) parseSelector(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	_, _ = h.cluster.VolumesFor(claim) // the attempt reports an error
	return claim
}

type podKind struct{ *intake }

func (k podKind) set(pod, old *v1.Pod) {
	if pod.ManagedFields != nil { // avoids a write to a stripped object, which a journal may read concurrently
		pod.ManagedFields = nil // half of the object's size, and unused here
	}
	k.seePod(pod, old)
}

func (k podKind) remove(_ cluster.Name, uid types.UID, last *v1.Pod) { k.losePod(last, uid) }

type nodeKind struct{ *intake }

func (k nodeKind) set(node, old *v1.Node)                            { k.seeNode(node, old) }
func (k nodeKind) remove(n cluster.Name, _ types.UID, last *v1.Node) { k.loseNode(n.Name, last) }

// taintRuleKind applies DeviceTaintRules to the stored slices.
type taintRuleKind struct{ events *clusterEvents }

func (k taintRuleKind) set(rule, _ *resourcev1.DeviceTaintRule) { k.retaint(rule.Name, rule) }

func (k taintRuleKind) remove(n cluster.Name, _ types.UID, _ *resourcev1.DeviceTaintRule) {
	k.retaint(n.Name, nil)
}

// retaint applies a rule; rule is nil if it was deleted. The ResourceSlices with changed taints are
// reported as events to waiting pods.
func (k taintRuleKind) retaint(name string, rule *resourcev1.DeviceTaintRule) {
	for _, was := range k.events.cluster.Retaint(name, rule) {
		is, _ := k.events.cluster.ResourceSlices.Get("", was.Name)
		k.events.objects = true
		k.events.objectChanged(queue.ResourceSlice, was, is)
	}
}

// priorityClassKind stores priority classes. They affect only the choice between victims, so their
// changes wake no pods.
type priorityClassKind struct {
	table *cluster.Table[*schedulingv1.PriorityClass]
}

func (k priorityClassKind) set(class, _ *schedulingv1.PriorityClass) { k.table.Set(class) }

func (k priorityClassKind) remove(n cluster.Name, _ types.UID, _ *schedulingv1.PriorityClass) {
	k.table.Delete("", n.Name)
}

type moveLeaseKind struct{ reservations *moveReservations }

func (k moveLeaseKind) set(lease, _ *coordinationv1.Lease) { k.reservations.seen(lease) }

func (k moveLeaseKind) remove(cluster.Name, types.UID, *coordinationv1.Lease) {
	k.reservations.show(nil)
}

type podGroupKind struct {
	*podGroups
	events *clusterEvents
}

func (k podGroupKind) set(g, _ *groups.PodGroup) {
	k.events.groupChanged(nameOf(g), g)
	k.groupSeen(g)
}

func (k podGroupKind) remove(n cluster.Name, _ types.UID, _ *groups.PodGroup) {
	k.events.groupChanged(n, nil)
	k.groupGone(n)
}

type compositeKind struct{ *podGroups }

func (k compositeKind) set(g, _ *groups.CompositePodGroup) { k.compositeSeen(g) }

func (k compositeKind) remove(n cluster.Name, _ types.UID, _ *groups.CompositePodGroup) {
	k.compositeGone(n)
}
