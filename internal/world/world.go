// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// World is a cluster in the form stored by an API server. It is not safe for concurrent use, but
// different forks may be used concurrently.
//
// Objects are never changed in place, neither by the World nor by its readers: a change is another
// object under the same name.
type World struct {
	// tables holds the objects by their Go type.
	tables map[reflect.Type]*table
	// workloads holds the objects that create pods. While lent is set, the table is shared with a
	// fork or a note, and is copied before a change.
	workloads *workload.Table
	lent      bool
	// cluster is the engine's input; nil until first use. From then on it follows every change. If
	// it belongs to another owner (see Over), the World changes it only in trials, which are
	// undone.
	cluster *cluster.Cluster
	// notes undo the changes since the first mark, in order of the changes. Without a mark, noting
	// is false and notes is empty.
	notes  []func()
	noting bool
}

// Open returns a world of these objects, in any order. The objects are shared with the caller. Pods
// without a UID, as in manifests, get a deterministic UID. If two objects have the same kind and
// name, the later one counts.
func Open(objects []metav1.Object) *World {
	w := &World{tables: map[reflect.Type]*table{}, workloads: &workload.Table{}}
	kinds := map[reflect.Type][]metav1.Object{}
	for _, object := range objects {
		object = identified(object)
		kind := reflect.TypeOf(object)
		kinds[kind] = append(kinds[kind], object)
		if makesPods(object) {
			w.workloads.Put(object)
		}
	}
	for kind, list := range kinds {
		w.tables[kind] = newTable(list)
	}
	return w
}

// Over returns a world without objects on a foreign cluster, such as a scheduling core's. The owner
// of the cluster must report its own changes through Follow. All other changes of the world are
// trials, and must be undone before the owner changes anything again.
func Over(c *cluster.Cluster) *World {
	return &World{tables: map[reflect.Type]*table{}, workloads: &workload.Table{}, cluster: c}
}

// Follow records the current state of an object, or its deletion, without changing the cluster. The
// cluster must already have this state, or not use objects of this kind.
func (w *World) Follow(object metav1.Object, gone bool) {
	w.record(w.tableOf(object), object, gone)
}

// identified returns a pod with a UID, and any other object unchanged.
func identified(object metav1.Object) metav1.Object {
	p, ok := object.(*v1.Pod)
	if !ok || p.UID != "" {
		return object
	}
	named := *p
	named.UID = UIDOf(p)
	return &named
}

// UIDOf returns a pod's UID, or a substitute for a missing one. No two pods have the same name, so
// the substitute is unique.
func UIDOf(p *v1.Pod) types.UID {
	if p.UID == "" {
		return types.UID(p.Namespace + "/" + p.Name)
	}
	return p.UID
}

// makesPods reports whether an object is of a kind with a pod-making controller.
func makesPods(object metav1.Object) bool {
	switch object.(type) {
	case *appsv1.Deployment, *appsv1.ReplicaSet, *appsv1.StatefulSet, *appsv1.DaemonSet, *batchv1.Job, *v1.ReplicationController:
		return true
	}
	return false
}

// Fork returns a world equal to this one. Neither is affected by later changes of the other. The
// cost is proportional to the changes since Open, or since many changes were last merged (see
// table). The fork's Cluster is built on first use.
func (w *World) Fork() *World {
	w.lent = true
	f := &World{tables: make(map[reflect.Type]*table, len(w.tables)), workloads: w.workloads, lent: true}
	for kind, t := range w.tables {
		f.tables[kind] = t.fork()
	}
	return f
}

// Workloads returns the objects with pod-making controllers. The table is valid until the next
// change of the world, and is changed by Put and Delete only.
func (w *World) Workloads() *workload.Table { return w.workloads }

// Put adds an object, or replaces the object with the same kind and name.
func (w *World) Put(object metav1.Object) { w.change(identified(object), false) }

// Delete removes the object of this kind and name, if it exists. The pods of a node or a workload
// remain after its deletion.
func (w *World) Delete(object metav1.Object) { w.change(object, true) }

// change updates every part of the world with an object's new state, or its deletion.
func (w *World) change(object metav1.Object, gone bool) {
	t := w.tableOf(object)
	before, there := t.get(nameOf(object))
	if gone && !there {
		return
	}

	w.record(t, object, gone)
	switch {
	case w.cluster == nil:
	case isPod(object):
		if there {
			w.leaveCluster(before.(*v1.Pod))
		}
		if !gone {
			w.enterCluster(object.(*v1.Pod))
		}
	default:
		w.showCluster(object, gone)
		w.Note(func() {
			if there {
				w.showCluster(before, false)
			} else {
				w.showCluster(object, true)
			}
		})
	}
}

// record changes an object in the tables.
func (w *World) record(t *table, object metav1.Object, gone bool) {
	if gone {
		w.store(t, nameOf(object), nil)
	} else {
		w.store(t, nameOf(object), object)
	}
	if makesPods(object) {
		w.changeWorkload(object, gone)
	}
}

// store changes an object only in its table; nil deletes it.
func (w *World) store(t *table, name cluster.Name, object metav1.Object) {
	if w.noting {
		before, _ := t.get(name)
		w.notes = append(w.notes, func() { t.set(name, before) })
	}
	t.set(name, object)
}

// changeWorkload changes a workload. Undoing the change restores the former table, with its order.
// The table is copied rarely, because workloads are few and rarely change.
func (w *World) changeWorkload(object metav1.Object, gone bool) {
	if before := w.workloads; w.lent {
		w.workloads, w.lent = before.Clone(), false
		w.Note(func() { w.workloads, w.lent = before, true })
	}
	if gone {
		w.workloads.Drop(workload.Of(object))
	} else {
		w.workloads.Put(object)
	}
}

// tableOf returns the table of an object's kind.
func (w *World) tableOf(object metav1.Object) *table {
	kind := reflect.TypeOf(object)
	t := w.tables[kind]
	if t == nil {
		t = newTable(nil)
		w.tables[kind] = t
	}
	return t
}

// isPod reports whether an object is a pod.
func isPod(object metav1.Object) bool { _, is := object.(*v1.Pod); return is }

// kinds returns the types of the objects. It sorts them, because data built from them must not
// depend on the order of a map.
func (w *World) kinds() []reflect.Type {
	return slices.SortedFunc(maps.Keys(w.tables), func(a, b reflect.Type) int { return strings.Compare(a.String(), b.String()) })
}

// Cluster returns the engine's input. It is built from the objects on first use: nodes and pods are
// added in the order of their names, so that the same objects give the same cluster. The caller may
// change it only temporarily, like a decision, which restores everything; all other changes must go
// through the World. A cluster built after undoable changes is discarded when they are undone.
func (w *World) Cluster() *cluster.Cluster {
	if w.cluster != nil {
		return w.cluster
	}
	w.cluster = cluster.New()
	noting := w.noting
	w.noting = false // building the cluster is not a change to undo
	for object := range w.Objects() {
		if !isPod(object) {
			w.showCluster(object, false)
		}
	}
	for p := range All[*v1.Pod](w) {
		w.enterCluster(p)
	}
	if w.noting = noting; len(w.notes) > 0 { // undoing earlier notes does not update the cluster
		w.Note(func() { w.cluster = nil })
	}
	return w.cluster
}

// showCluster updates or removes any object but a pod in the cluster. Kinds irrelevant to decisions
// are ignored.
func (w *World) showCluster(object metav1.Object, gone bool) {
	n, isNode := object.(*v1.Node)
	switch {
	case isNode && gone:
		w.cluster.RemoveNode(n.Name)
	case isNode:
		w.cluster.SetNode(n)
	case gone:
		w.cluster.Drop(object)
	default:
		w.cluster.Put(object)
	}
}

// enterCluster adds a pod to the cluster: on its node, or nominated to one.
func (w *World) enterCluster(object *v1.Pod) {
	switch {
	case rules.IsTerminal(object):
		return
	case object.Spec.NodeName != "":
		w.cluster.SetPod(object)
	case object.Status.NominatedNodeName != "" && object.DeletionTimestamp == nil:
		w.cluster.Nominate(w.cluster.Pending(object), object.Status.NominatedNodeName)
	default:
		return
	}
	w.Note(func() { w.cluster.RemovePod(object.UID) })
}

// leaveCluster removes a pod from the cluster. Undoing the removal restores the same pod, because
// pointers to it exist.
func (w *World) leaveCluster(object *v1.Pod) {
	p, nominated := w.cluster.Pod(object.UID), w.cluster.Nominated(object.UID)
	switch {
	case p != nil:
		w.takeOff(p)
	case nominated != nil:
		w.cluster.RemovePod(object.UID)
		w.Note(func() { w.cluster.Nominate(nominated, nominated.Nominated) })
	}
}

// takeOff takes a pod off its node, if the cluster has that node.
func (w *World) takeOff(p *cluster.Pod) {
	from := p.NodeName
	w.cluster.RemovePod(p.UID())
	p.SetNodeName("")
	w.Note(func() {
		p.SetNodeName(from)
		w.cluster.Return(p)
	})
}

// Place puts a pod on a node, like a binding. p is the object's form in the cluster, from
// [cluster.Cluster.Pending]; it must not be on a node.
func (w *World) Place(object *v1.Pod, p *cluster.Pod, n *cluster.Node) {
	bound := *object
	bound.Spec.NodeName = n.Name
	w.store(w.tableOf(object), nameOf(object), &bound)

	nominated := w.cluster.Nominated(p.UID())
	w.cluster.Place(p, n)
	w.Note(func() {
		w.cluster.RemovePod(p.UID())
		if p.SetNodeName(""); nominated != nil {
			w.cluster.Nominate(nominated, nominated.Nominated)
		}
	})
}

// Remove removes a pod from its node. Unlike Delete it needs no object, and p can be placed again.
func (w *World) Remove(p *cluster.Pod) {
	w.store(w.tableOf((*v1.Pod)(nil)), cluster.Name{Namespace: p.Namespace(), Name: p.Name()}, nil)
	w.takeOff(p)
}

// Reserve lets a plugin reserve the pod's requirements beyond room on the node chosen for it.
// Plugins write the device claims of the cluster themselves, and Reserve records these writes in
// the world.
func (w *World) Reserve(r plugins.Reserver, p *cluster.Pod, n *cluster.Node) error {
	claims, t := &w.Cluster().ResourceClaims, w.tableOf((*resourcev1.ResourceClaim)(nil))
	version := claims.Version
	claims.Since(version) // from now on, the table records changed names
	undo, err := r.Reserve(w.cluster, p, n)
	if err != nil {
		return err
	}

	names, _ := claims.Since(version)
	for _, name := range slices.Clone(names) {
		before, had := t.get(name)
		w.Note(func() {
			if had {
				claims.Set(before.(*resourcev1.ResourceClaim))
			}
		})
		if now, there := claims.Get(name.Namespace, name.Name); there {
			w.store(t, name, now)
		} else {
			w.store(t, name, nil)
		}
	}
	w.Note(undo) // runs before the notes above, which restore the identical claims
	return nil
}

// Mark is a state to which a world can be restored.
type Mark struct {
	notes int
	first bool // nothing was noted before
}

// Mark begins to record changes, so that Undo can restore the current state of the world. Marks
// nest. A mark that is never undone costs only memory.
func (w *World) Mark() Mark {
	m := Mark{len(w.notes), !w.noting}
	w.noting, w.lent = true, true
	return m
}

// Undo undoes the changes since the mark, the last one first. It costs as much as the changes.
func (w *World) Undo(m Mark) {
	w.noting = false // the inverse of a change is not a change itself
	for len(w.notes) > m.notes {
		last := len(w.notes) - 1
		undo := w.notes[last]
		w.notes[last] = nil
		w.notes = w.notes[:last]
		undo()
	}
	w.noting = !m.first
}

// Note registers undo, to be called when the current changes are undone, before earlier
// registrations. It is for state derived from the world, and for state known only to the caller.
// Without a mark, Note does nothing.
func (w *World) Note(undo func()) {
	if w.noting {
		w.notes = append(w.notes, undo)
	}
}
