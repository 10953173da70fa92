// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

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
	w.cluster.RemovePod(p.UID)
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

	nominated := w.cluster.Nominated(p.UID)
	w.cluster.Place(p, n)
	w.Note(func() {
		w.cluster.RemovePod(p.UID)
		if p.SetNodeName(""); nominated != nil {
			w.cluster.Nominate(nominated, nominated.Nominated)
		}
	})
}

// Remove removes a pod from its node. Unlike Delete it needs no object, and p can be placed again.
func (w *World) Remove(p *cluster.Pod) {
	w.store(w.tableOf((*v1.Pod)(nil)), cluster.Name{Namespace: p.Namespace(), Name: p.Name}, nil)
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
