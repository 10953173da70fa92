// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// MaxBindingDelay is the assumed maximum time between a scheduler's decision about a pod and the
// arrival of its binding. A kube-scheduler with its default limit of 50 requests a second needs 20
// s to write the bindings of a burst of 1,000 pods.
const MaxBindingDelay = 30 * time.Second

// skew is the maximum lag of a scheduler behind the shadow in seeing a change: kinds are watched
// separately.
const skew = time.Second

// mostUnordered is the maximum number of bindings of unknown order to try in every order: the
// number of orders is two to the power of it.
const mostUnordered = 6

// reconstruction restores the state in which another scheduler decided a pod.
//
// Bindings arrive in the order of their writes, which differs from the order of decisions: a
// scheduler writes many at a time, and decides each pod against a cluster with all previously
// decided pods on their nodes. Therefore a shadow processes events a MaxBindingDelay later. When it
// then judges a binding, it also knows the later ones, and finds the possible states at the pod's
// decision: schedulers decide pods of one priority in arrival order. For example, pods A and B
// arrive in this order, and B's binding arrives first. When B is judged, A is foreseen: its binding
// is among the held events. So B is judged with A also on its node.
type reconstruction struct {
	*common
	ready *readiness

	held     []heldEvent            // what was seen and is not taken in yet
	coming   map[types.UID]struct{} // the pods of held events that are pending
	foreseen map[types.UID]*v1.Pod  // the pods of held events that are bound
	bound    []boundItem            // the pods that were judged, as long as they count; see forget
	most     int                    // of bound, before pods that no longer count are forgotten
	rejected map[types.UID]struct{} // pending pods that were found unschedulable at least once
	// generations holds the generations of objects other than pods and nodes, if they have one.
	generations map[types.UID]int64
	began       time.Time // when everything was listed: pods from before came in an unknown order
	changed     time.Time // when something else than a binding has changed the cluster
	lost        time.Time // when a pending pod went that may have had a node
	late        time.Time // when a binding was seen more than a MaxBindingDelay after its pod came
}

// heldEvent is an event held back until MaxBindingDelay after at.
type heldEvent struct {
	Event
	at time.Time
}

// boundItem is a pod judged at that time.
type boundItem struct {
	*queue.Item
	at time.Time
}

// delayEvent holds an event back, and processes the events held for long enough.
func (h *reconstruction) delayEvent(e Event, take func(Event)) {
	watched := false
	switch e := e.(type) {
	case Seen:
		watched = true
		if pod, ok := e.Object.(*v1.Pod); ok && h.ready.hasSynced() {
			h.foresee(pod)
		}
	case Gone, Listing, Listed:
		watched = true
	}

	// Once one is held, all later ones must be held as well, to stay in order.
	if watched && (len(h.held) > 0 || h.ready.hasSynced()) {
		h.held = append(h.held, heldEvent{e, h.now})
	} else {
		if seen, ok := e.(Seen); ok {
			h.sameSpec(seen.Object)
		}
		take(e)
	}

	if h.began.IsZero() && h.ready.hasSynced() {
		h.began = h.now
	}
	for len(h.held) > 0 && h.now.Sub(h.held[0].at) >= MaxBindingDelay {
		due := h.held[0]
		h.held = h.held[1:]
		h.takeLate(due, take)
	}
}

// foresee records the implications of a held pod event for earlier pods.
func (h *reconstruction) foresee(pod *v1.Pod) {
	switch {
	case pod.Spec.NodeName != "": // as bound: a leaving pod does not count where pods are spread
		if h.foreseen[pod.UID] == nil {
			h.foreseen[pod.UID] = pod
		}
	case isRejected(pod):
		h.rejected[pod.UID] = struct{}{}
		fallthrough
	default:
		h.coming[pod.UID] = struct{}{}
	}
}

// takeLate processes an event, and records whether it changes more than the node of the judged pod.
func (h *reconstruction) takeLate(e heldEvent, take func(Event)) {
	position, judged := h.cluster.Log.Len(), false
	seen, _ := e.Event.(Seen)
	pod, ofPod := seen.Object.(*v1.Pod)
	if ofPod {
		judged = pod.Spec.NodeName != "" && h.queue.Get(pod.UID) != nil
		delete(h.coming, pod.UID)
		if h.foreseen[pod.UID] == pod {
			delete(h.foreseen, pod.UID)
		}
	}

	pending := h.queue.Len(queue.Active)
	take(e.Event)
	if gone, ok := e.Event.(Gone); ok {
		delete(h.rejected, gone.Object.GetUID())
		delete(h.generations, gone.Object.GetUID())
	}
	if judged {
		return
	}
	if h.queue.Len(queue.Active) < pending { // the scheduler may have decided it before it noticed the deletion
		h.lost = h.now
	}
	if _, ofNode := seen.Object.(*v1.Node); !ofPod && !ofNode {
		if !h.sameSpec(seen.Object) {
			h.changed = h.now
		}
		return
	}

	changes, ok := h.cluster.Log.Since(position)
	if !ok || !isSame(changes) {
		h.changed = h.now
	}
}

// isSame reports whether changes are irrelevant to placed pods: a starting pod gets a new class if
// its status contains its resources, and counts as before for other pods.
func isSame(changes []cluster.Change) bool {
	if len(changes) == 2 && changes[0].Kind == cluster.PodRemoved && changes[1].Kind == cluster.PodAdded &&
		changes[0].Node == changes[1].Node {
		a, b := changes[0].Class, changes[1].Class
		return changes[0].Terminating == changes[1].Terminating && reflect.DeepEqual(a.Requests, b.Requests) &&
			a.Labels.Equal(b.Labels) &&
			a.NonZeroCPU == b.NonZeroCPU && a.NonZeroMemory == b.NonZeroMemory && a.Affinities == b.Affinities
	}
	return !slices.ContainsFunc(changes, func(c cluster.Change) bool { return c.Kind != cluster.PodChanged })
}

// sameSpec reports whether an object other than a pod or node was seen before with the same fields
// relevant to placements: for a workload its selector, which never changes.
func (h *reconstruction) sameSpec(object metav1.Object) bool {
	if object == nil {
		return false // an object was deleted, or listed again
	}
	generation := object.GetGeneration()
	switch object.(type) {
	case *v1.Pod, *v1.Node:
		return false
	case *appsv1.ReplicaSet, *appsv1.StatefulSet, *v1.ReplicationController:
		generation = 1
	}
	before := h.generations[object.GetUID()]
	if generation != 0 {
		h.generations[object.GetUID()] = generation
	}
	return generation != 0 && generation == before
}

// isRejected reports whether a scheduler has found the pod unschedulable at least once, by its
// status.
func isRejected(pod *v1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
			return true
		}
	}
	return pod.Status.NominatedNodeName != "" && pod.Spec.NodeName == ""
}

// nextDue returns the time at which the next held event is processed. ok is false without held
// events.
func (h *reconstruction) nextDue() (at time.Time, ok bool) {
	if len(h.held) == 0 {
		return at, false
	}
	return h.held[0].at.Add(MaxBindingDelay), true
}

// rememberBound records a judged pod. The list is cleaned up only after it has doubled: each
// clean-up scans all pending pods.
func (h *reconstruction) rememberBound(item *queue.Item) {
	if h.isOrdered(item) && h.now.Sub(item.Since) > MaxBindingDelay {
		h.late = h.now
	}
	if len(h.bound) > h.most {
		h.forgetPod()
		h.most = 2*len(h.bound) + 64
	}
	h.bound = append(h.bound, boundItem{item, h.now})
}

// forgetPod drops the judged pods irrelevant to the order of further decisions: deleted pods, and
// pods bound before all pending pods arrived.
func (h *reconstruction) forgetPod() {
	oldest := h.now.Add(-MaxBindingDelay)
	for item := range h.queue.Each {
		if since := h.earliest(item); since.Before(oldest) {
			oldest = since
		}
	}
	h.bound = slices.DeleteFunc(h.bound, func(b boundItem) bool {
		return b.at.Before(oldest) || h.cluster.Pod(b.Pod.UID) == nil
	})
}

// earliest returns the earliest possible time of a pod's decision, if its binding arrives now. A
// pod found unschedulable before waited for a change, assumed to be recent.
func (h *reconstruction) earliest(item *queue.Item) time.Time {
	if h.isOrdered(item) {
		return item.Since
	}
	return laterOf(item.Since, h.now.Add(-MaxBindingDelay))
}

// evaluatePast evaluates the nodes in their possible states at the pod's decision. If the chosen
// node was among the best in any of these states, it returns that evaluation; otherwise the one
// with pods decided in their order. unclear is set if there may be other states, which were not
// tried. Each state costs an evaluation of all nodes, and there are at most 64 more; see
// mostUnordered.
func (h *reconstruction) evaluatePast(item *queue.Item, node string,
	evaluate func() *decide.Evaluation) (evaluation *decide.Evaluation, unclear bool) {
	if evaluation = evaluate(); isBest(evaluation, node) { // as bindings were written
		return evaluation, false
	}

	around, ordered := h.podsAround(item)
	known := h.isKnown(item)
	if len(around) == 0 {
		return evaluation, !known
	}
	evaluation = h.evaluateWith(around, func(o *rivalPod) bool { return o.ahead }, evaluate)
	switch {
	case isBest(evaluation, node):
		return evaluation, false
	case known && ordered:
		return evaluation, false
	case !known || len(around) > mostUnordered:
		return evaluation, true
	}

	// Bit i of subset is set if the i-th of the pods around was decided before.
	for subset := range 1 << len(around) {
		state := h.evaluateWith(around, func(o *rivalPod) bool { return subset>>o.number&1 == 1 }, evaluate)
		if isBest(state, node) {
			return state, false
		}
	}
	return evaluation, false
}

// isKnown reports whether the observed bindings are the only possible changes of the cluster since
// the pod arrived.
func (h *reconstruction) isKnown(item *queue.Item) bool {
	since := h.earliest(item).Add(-skew)
	if !h.changed.Before(since) || !h.lost.Add(MaxBindingDelay).Before(since) || h.isBehind() && !h.isOrdered(item) {
		return false
	}

	for uid := range h.foreseen { // a pod that was never seen pending came at a time that is not known
		if _, coming := h.coming[uid]; !coming && h.queue.Get(uid) == nil && h.cluster.Pod(uid) == nil {
			return false
		}
	}

	for i := range h.queue.Each {
		if i != item && h.foreseen[i.Pod.UID] == nil && h.mayHaveNode(i, item) {
			return false
		}
	}
	return true
}

// isBehind reports whether the scheduler's bindings are late, or were a short time ago: then the
// binding of a pod found unschedulable before may also be late.
func (h *reconstruction) isBehind() bool {
	return !h.late.IsZero() && h.now.Sub(h.late) < 10*MaxBindingDelay
}

// mayHaveNode reports whether the scheduler may have decided another pod before the judged one
// although its binding has not arrived.
func (h *reconstruction) mayHaveNode(pending, item *queue.Item) bool {
	if pending.Place() == queue.Gated || pending.Pod.Spec.SchedulerName != item.Pod.Spec.SchedulerName {
		return false
	}
	if _, rejected := h.rejected[pending.Pod.UID]; rejected {
		return h.isBehind()
	}
	later := rules.Priority(pending.Pod) <= rules.Priority(item.Pod) && pending.Came() > item.Came()
	return !later || !h.isOrdered(item)
}

// isBest reports whether this node has the highest total, possibly with other nodes.
func isBest(e *decide.Evaluation, node string) bool {
	return e.Err == nil && slices.ContainsFunc(e.Best(), func(v *decide.NodeVerdict) bool { return v.Node.Name == node })
}

// laterOf returns the later of two times.
func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
