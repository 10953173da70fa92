// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"maps"
	"reflect"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file turns changes of the cluster into events, which the queue compares with the needs of
// waiting pods. Events have kube-scheduler's labels and actions, so that metrics and plugins' hints
// match kube-scheduler's.

// clusterEvents holds the events not yet passed to the queue.
//
// Events are kept only while a pod could be waiting for one: in the queue, at Permit, or during the
// choice of its victims in the current step. The next tick passes them to the queue, so hints see
// the model with all changes up to that tick.
type clusterEvents struct {
	*common
	events []queue.Event
	// objects is set if an object changed that a placement may be waiting for; see objectWaits.
	objects   bool
	outOfTree bool // an out-of-tree plugin reads the objects of events
	held      int  // number of pods waiting at Permit
	// inPostFilter: a preemption is being decided, so its preemptor is not back in the queue yet,
	// but must not miss the following events.
	inPostFilter bool
}

// addEvent records an event that may help pending pods. If no pod could be waiting for it, it is
// dropped.
func (h *clusterEvents) addEvent(e queue.Event) {
	if h.hasListeners() {
		h.events = append(h.events, e)
	}
}

// hasListeners reports whether a pod could be waiting for an event. Active pods and pods in
// back-off need no events.
func (h *clusterEvents) hasListeners() bool {
	return h.inPostFilter || h.queue.Len(queue.Waiting)+h.queue.Len(queue.Gated)+h.held > 0
}

// flushEvents passes the recorded events to the queue.
func (h *clusterEvents) flushEvents() {
	for i := range h.events {
		h.queue.Happened(&h.events[i], h.now)
	}
	h.dropEvents()
}

// dropEvents discards the recorded events. It reuses their slice, unless a burst has made it very
// large.
func (h *clusterEvents) dropEvents() {
	clear(h.events)
	h.events = cluster.ShrunkList(h.events[:0])
}

// podAdded records that a pod now takes room on its node. This may help a pending pod with an
// affinity to it. object is nil if the API object is not available.
func (h *clusterEvents) podAdded(p *cluster.Pod, object *v1.Pod) {
	if h.hasListeners() {
		h.addEvent(queue.Event{
			Resource: queue.Pod, Action: queue.Add, Label: "AssignedPodAdd", Pod: p, Node: p.Node, New: h.podObject(p, object),
		})
	}
}

// podRemoved records that a pod no longer takes room on a node, or is no longer nominated to it.
// The pod may still exist in the API, if it lost its nomination or its placement failed.
func (h *clusterEvents) podRemoved(p *cluster.Pod, n *cluster.Node, object *v1.Pod) {
	if !h.hasListeners() && (n == nil || len(n.Nominated) == 0) {
		return
	}
	h.addEvent(queue.Event{
		Resource: queue.Pod, Action: queue.Delete, Label: "AssignedPodDelete", PodBefore: p, Node: n, Old: h.podObject(p, object),
	})
	if n != nil && !h.queue.WaitOutBackoff { // preemptors nominated to this node waited for this event, and need no back-off
		for _, waiting := range n.Nominated {
			h.queue.Activate(waiting.UID(), h.now)
		}
	}
}

// changedPlaced records a relevant change of a placed pod. The objects may be nil. others holds
// changes that only out-of-tree plugins see. A pod that changes its node is recorded as removed and
// added.
func (h *clusterEvents) changedPlaced(was *cluster.Pod, at *cluster.Node, p *cluster.Pod, old, object *v1.Pod, others queue.Action) {
	if was.NodeName != p.NodeName {
		h.podRemoved(was, at, nil)
		h.podAdded(p, object)
		return
	}

	actions := others | resized(was.Class, p.Class)
	if !was.Class.Labels.Equal(p.Class.Labels) {
		actions |= queue.UpdatePodLabel
	}
	if actions == 0 || was.Terminating != p.Terminating {
		actions = queue.Update
	}

	h.addEvent(queue.Event{
		Resource: queue.Pod, Action: actions, Label: "AssignedPodUpdate", PodBefore: was, Pod: p, Node: p.Node,
		Old: h.podObject(was, old), New: h.podObject(p, object),
	})
}

// resized returns the changes of a pod's requests.
func resized(was, is *cluster.PodClass) (actions queue.Action) {
	if takesLess(&was.Requests, &is.Requests) {
		actions |= queue.UpdatePodScaleDown
	}
	if takesLess(&is.Requests, &was.Requests) {
		actions |= queue.UpdatePodScaleUp
	}
	return actions
}

// takesLess reports whether a pod requests less of any resource than before. If a pod requests less
// of one resource and more of another, both actions are reported.
func takesLess(was, is *cluster.Resources) bool {
	if is.MilliCPU < was.MilliCPU || is.Memory < was.Memory || is.EphemeralStorage < was.EphemeralStorage {
		return true
	}
	for name, amount := range was.Scalars {
		if is.Scalars[name] < amount {
			return true
		}
	}
	return false
}

// podObject returns the out-of-tree plugins' view of a pod: the API object or, if that is not kept,
// the cluster model's data. Without such plugins it returns nil, so that recorded events do not
// retain objects.
func (h *clusterEvents) podObject(p *cluster.Pod, object *v1.Pod) any {
	switch {
	case !h.outOfTree:
		return nil
	case object != nil:
		return object
	}
	return p.Object()
}

// nodeChanged records the changes of a node. before is nil for a new node; old is nil if the object
// was not kept.
func (h *clusterEvents) nodeChanged(before, n *cluster.Node, old, object *v1.Node) {
	e := queue.Event{Resource: queue.Node, Label: "NodeAdd", Action: queue.Add, NodeBefore: before, Node: n, New: object}
	if before != nil {
		e.Action, e.Label = nodeActions(before, n), "NodeUpdate"
		if h.outOfTree {
			e.Action |= otherNodeActions(old, object)
			e.Old = orNil(old)
			if old == nil {
				e.Old = before.Object()
			}
		}
	} else {
		h.objects = true
	}
	if e.Action != 0 {
		h.addEvent(e)
	}
}

// nodeActions returns the changes of a node relevant to Berth's own plugins.
func nodeActions(was, is *cluster.Node) (actions queue.Action) {
	if was.Labels != is.Labels || was.Hostname != is.Hostname {
		actions |= queue.UpdateNodeLabel
	}
	if was.Taints != is.Taints {
		actions |= queue.UpdateNodeTaint
	}
	if was.Taints.SparesPods != is.Taints.SparesPods {
		actions |= queue.UpdateNodePreemptionPolicy
	}
	if was.Size != is.Size {
		actions |= queue.UpdateNodeAllocatable
	}
	if was.Features != is.Features {
		actions |= queue.UpdateNodeDeclaredFeature
	}
	return actions
}

// otherNodeActions returns the changes relevant only to out-of-tree plugins. Without the previous
// object, any change may have occurred.
func otherNodeActions(old, is *v1.Node) (actions queue.Action) {
	if old == nil {
		return queue.UpdateNodeCondition | queue.UpdateNodeAnnotation | queue.UpdateNodePreemptionPolicy
	}
	if !maps.Equal(old.Annotations, is.Annotations) {
		actions |= queue.UpdateNodeAnnotation
	}
	if !maps.Equal(conditionStatuses(old), conditionStatuses(is)) {
		actions |= queue.UpdateNodeCondition
	}
	if !reflect.DeepEqual(old.Spec.PodPreemptionPolicy, is.Spec.PodPreemptionPolicy) {
		actions |= queue.UpdateNodePreemptionPolicy
	}
	return actions
}

// conditionStatuses returns the statuses of the node's conditions. It omits messages, and times,
// which change with every heartbeat.
func conditionStatuses(n *v1.Node) map[v1.NodeConditionType]v1.ConditionStatus {
	all := map[v1.NodeConditionType]v1.ConditionStatus{}
	for _, is := range n.Status.Conditions {
		all[is.Type] = is.Status
	}
	return all
}

// objectChanged records the change of an object other than a node or a pod. was is nil for an added
// object, and if the state of a deleted object is unknown; is is nil for a deleted object.
func (h *clusterEvents) objectChanged(resource queue.Resource, was, is any) {
	action := queue.Update
	switch {
	case is == nil:
		action = queue.Delete
	case was == nil:
		action = queue.Add
	}
	h.addEvent(queue.Event{Resource: resource, Action: action, Label: string(resource) + action.String(), Old: was, New: is})
}

// groupChanged records the change of a PodGroup to object, or its deletion, for out-of-tree
// plugins. Pods that Berth itself makes wait for the group are woken by wakeMembers.
func (h *clusterEvents) groupChanged(name cluster.Name, object *groups.PodGroup) {
	if !h.outOfTree {
		return
	}
	var was any
	if g := h.groups.Get(name); g != nil && g.Object != nil {
		if object != nil && sameVersion(g.Object, object) {
			return
		}
		was = g.Object
	}
	h.objectChanged(queue.PodGroup, was, orNil(object))
}

// orNil returns nil for a nil pointer, rather than an interface holding a nil pointer.
func orNil[T any, P interface {
	*T
	metav1.Object
}](object P) any {
	if object == nil {
		return nil
	}
	return object
}
