// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
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
}

func tableOf[T metav1.Object](h *clusterEvents, table *cluster.Table[T], resource queue.Resource) tableKind[T] {
	return tableKind[T]{h, table, resource}
}

func mirrorTable[T metav1.Object](h *clusterEvents, table *cluster.Table[T], resource queue.Resource) mirror {
	return newMirror(h.common, h, resource, tableOf(h, table, resource))
}

func (k tableKind[T]) set(object, _ T) { k.setAs(object, nil) }

// setAs stores an object in the form returned by convert, if convert is not nil.
func (k tableKind[T]) setAs(object T, convert func(T) T) {
	var was any
	if old, ok := k.table.Get(object.GetNamespace(), object.GetName()); ok {
		if sameVersion(old, object) { // listed again: later assumptions about the object are still valid
			return
		}
		was = old
	}
	if convert != nil {
		object = convert(object)
	}
	k.table.Set(object)
	k.events.objects = true
	k.events.objectChanged(k.resource, was, object)
}

func (k tableKind[T]) remove(n cluster.Name, _ types.UID, _ T) {
	var was any
	if old, ok := k.table.Get(n.Namespace, n.Name); ok {
		was = old
	}
	k.table.Delete(n.Namespace, n.Name)
	k.events.objects = true
	k.events.objectChanged(k.resource, was, nil)
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

// budgetKind stores disruption budgets reduced by the victims that the API does not count yet.
type budgetKind struct {
	tableKind[*policyv1.PodDisruptionBudget]
	preemptions *preemptions
}

func (k budgetKind) set(budget, _ *policyv1.PodDisruptionBudget) {
	k.setAs(budget, k.preemptions.budgetSeen)
}

func (k budgetKind) remove(n cluster.Name, uid types.UID, last *policyv1.PodDisruptionBudget) {
	delete(k.preemptions.budgets, n)
	k.tableKind.remove(n, uid, last)
}

// claimKind parses a claim's selector when it is shown rather than during an attempt, since the
// selector may be long.
type claimKind struct {
	tableKind[*v1.PersistentVolumeClaim]
}

func (k claimKind) set(claim, _ *v1.PersistentVolumeClaim) {
	k.setAs(claim, func(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
		_, _ = k.events.cluster.VolumesFor(claim) // the attempt reports an error
		return claim
	})
}

// resourceClaimKind stores claims with their assumed allocations.
type resourceClaimKind struct {
	tableKind[*resourcev1.ResourceClaim]
	claims *sharedClaims
}

func (k resourceClaimKind) set(claim, _ *resourcev1.ResourceClaim) {
	k.setAs(claim, k.claims.mergeSeen)
}

func (k resourceClaimKind) remove(n cluster.Name, uid types.UID, last *resourcev1.ResourceClaim) {
	k.claims.forgetGone(n)
	k.tableKind.remove(n, uid, last)
}

// sliceKind stores slices with the taints of the rules that select their devices.
type sliceKind struct {
	tableKind[*resourcev1.ResourceSlice]
}

func (k sliceKind) set(slice, _ *resourcev1.ResourceSlice) { k.setAs(slice, k.events.cluster.Tainted) }

func (k sliceKind) remove(n cluster.Name, uid types.UID, last *resourcev1.ResourceSlice) {
	k.tableKind.remove(n, uid, last)
	k.events.cluster.Unpublish(n.Name)
}

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
	k.reservations.withdraw()
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
