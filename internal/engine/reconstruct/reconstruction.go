// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package reconstruct

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
)

// MaxBindingDelay is the assumed maximum time between a scheduler's decision about a pod and the
// arrival of its binding. A kube-scheduler with its default limit of 50 requests a second needs 20
// s to write the bindings of a burst of 1,000 pods.
const MaxBindingDelay = 30 * time.Second

// skew is the maximum time between the observations of the same change by the shadow and by the
// other scheduler. The times differ because each kind has its own watch.
const skew = time.Second

// mostUnordered is the maximum number of bindings of unknown order for which all possible states
// are tried. n bindings have 2^n such states.
const mostUnordered = 6

// reconstruction restores the cluster state in which another scheduler decided a pod.
//
// Bindings arrive in the order of their writes, which differs from the order of decisions: a
// scheduler writes many bindings concurrently, and decides each pod against a cluster with all
// previously decided pods on their nodes. Therefore a shadow processes each event with a delay of
// MaxBindingDelay. When it judges a binding, it has already observed the bindings that arrived
// later. From these bindings it derives the possible states at the pod's decision, since schedulers
// decide pods of one priority in arrival order. For example, pod A arrives before pod B, but B's
// binding arrives first. When B is judged, A's binding is among the held events. So B is judged
// with A on its node.
type reconstruction struct {
	core    *cycle.Core
	cluster *cluster.Cluster
	queue   *queue.Queue
	now     time.Time // time of the current step

	held     []heldEvent            // observed events that are not processed yet
	coming   map[types.UID]struct{} // pending pods in held events
	foreseen map[types.UID]*v1.Pod  // bound pods in held events
	bound    []boundItem            // judged pods, until forgetPod drops them
	most     int                    // length of the list bound at which forgetPod runs
	rejected map[types.UID]struct{} // pending pods found unschedulable at least once
	// generations holds the generations of objects other than pods and nodes, for kinds with
	// generations.
	generations map[types.UID]int64
	began       time.Time // time at which all kinds were listed; the arrival order of earlier pods is unknown
	changed     time.Time // time of the last change of the cluster by anything but a binding
	lost        time.Time // time of the last deletion of a pending pod to which a node may have been assigned
	late        time.Time // time at which a binding was observed more than MaxBindingDelay after its pod arrived
}

// heldEvent is an event with the time at which it was observed. It is held back for
// MaxBindingDelay.
type heldEvent struct {
	cycle.Event
	at time.Time
}

// boundItem is a judged pod with the time of the judgement.
type boundItem struct {
	*queue.Item
	at time.Time
}

// New returns a reconstruction for a core, to be used as [cycle.Options.Shadow].
func New(core *cycle.Core) cycle.Shadow {
	view := core.View()
	return &reconstruction{
		core: core, cluster: view.Cluster, queue: view.Queue,
		coming: map[types.UID]struct{}{}, foreseen: map[types.UID]*v1.Pod{}, rejected: map[types.UID]struct{}{}, generations: map[types.UID]int64{},
	}
}

// DelayEvent holds an event back, and processes the events held for MaxBindingDelay.
func (h *reconstruction) DelayEvent(now time.Time, e cycle.Event, take func(cycle.Event)) {
	h.now = now
	watched := false
	switch e := e.(type) {
	case cycle.Seen:
		watched = true
		if pod, ok := e.Object.(*v1.Pod); ok && h.core.Synced() {
			h.foresee(pod)
		}
	case cycle.Gone, cycle.Listing, cycle.Listed:
		watched = true
	}

	// Once one event is held, all later events must be held as well, to keep their order.
	if watched && (len(h.held) > 0 || h.core.Synced()) {
		h.held = append(h.held, heldEvent{e, h.now})
	} else {
		if seen, ok := e.(cycle.Seen); ok {
			h.sameSpec(seen.Object)
		}
		take(e)
	}

	if h.began.IsZero() && h.core.Synced() {
		h.began = h.now
	}
	for len(h.held) > 0 && h.now.Sub(h.held[0].at) >= MaxBindingDelay {
		due := h.held[0]
		h.held = h.held[1:]
		h.takeLate(due, take)
	}
}

// foresee records a held pod event for the judgement of earlier pods.
func (h *reconstruction) foresee(pod *v1.Pod) {
	switch {
	case pod.Spec.NodeName != "": // keep the first bound version: topology spreading ignores terminating pods
		h.foreseen[pod.UID] = cmp.Or(h.foreseen[pod.UID], pod)
	case isRejected(pod):
		h.rejected[pod.UID] = struct{}{}
		fallthrough
	default:
		h.coming[pod.UID] = struct{}{}
	}
}

// takeLate processes an event, and records whether it changes more than the node of the judged pod.
func (h *reconstruction) takeLate(e heldEvent, take func(cycle.Event)) {
	position, judged := h.cluster.Log.Len(), false
	seen, _ := e.Event.(cycle.Seen)
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
	if gone, ok := e.Event.(cycle.Gone); ok {
		delete(h.rejected, gone.Object.GetUID())
		delete(h.generations, gone.Object.GetUID())
	}
	if judged {
		return
	}
	if h.queue.Len(queue.Active) < pending { // the scheduler may have decided the pod before observing the deletion
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

// isSame reports whether the changes are irrelevant to decisions about other pods. For example, a
// starting pod gets a new class if its status contains its resources, but the effect of the pod on
// other pods is unchanged.
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

// sameSpec reports whether an object other than a pod or node was seen before with the same
// placement-relevant fields. For a workload, this is the selector, which never changes.
func (h *reconstruction) sameSpec(object metav1.Object) bool {
	if object == nil {
		return false // the event is not a Seen
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

// isRejected reports whether the status of the pod shows that a scheduler has found it
// unschedulable.
func isRejected(pod *v1.Pod) bool {
	c := rules.PodCondition(&pod.Status, v1.PodScheduled)
	return c != nil && c.Status == v1.ConditionFalse || pod.Status.NominatedNodeName != "" && pod.Spec.NodeName == ""
}

// NextDue returns the time at which the next held event is processed. ok is false if no events are
// held.
func (h *reconstruction) NextDue() (at time.Time, ok bool) {
	if len(h.held) == 0 {
		return at, false
	}
	return h.held[0].at.Add(MaxBindingDelay), true
}

// rememberBound records a judged pod. The list is cleaned up only after it has doubled, because
// each clean-up scans all pending pods.
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
// pods bound before the earliest possible decision about a pending pod.
func (h *reconstruction) forgetPod() {
	oldest := h.now.Add(-MaxBindingDelay)
	for item := range h.queue.Each {
		oldest = pacing.Earlier(oldest, h.earliest(item))
	}
	h.bound = slices.DeleteFunc(h.bound, func(b boundItem) bool {
		return b.at.Before(oldest) || h.cluster.Pod(b.Pod.UID) == nil
	})
}

// earliest returns the earliest possible time of a pod's decision, if its binding arrives now. A
// pod found unschedulable earlier has waited for a change, which is assumed to be recent.
func (h *reconstruction) earliest(item *queue.Item) time.Time {
	if h.isOrdered(item) {
		return item.Since
	}
	return pacing.Later(item.Since, h.now.Add(-MaxBindingDelay))
}

// Judge evaluates the nodes in their possible states at the decision about a pod bound to a node,
// and remembers the pod for the judgement of other pods.
func (h *reconstruction) Judge(item *queue.Item, node string, evaluate func() *decide.Evaluation) (*decide.Evaluation, bool) {
	evaluation, unclear := h.evaluatePast(item, node, evaluate)
	h.rememberBound(item)
	return evaluation, unclear
}

// evaluatePast evaluates the nodes in their possible states at the pod's decision. If the chosen
// node was among the best nodes in any of these states, it returns the evaluation of that state.
// Otherwise it returns the evaluation of the state with the pods decided in arrival order. unclear
// is set if other, untried states are possible. Each state costs an evaluation of all nodes; at
// most 64 additional states are tried (see mostUnordered).
func (h *reconstruction) evaluatePast(item *queue.Item, node string,
	evaluate func() *decide.Evaluation) (evaluation *decide.Evaluation, unclear bool) {
	if evaluation = evaluate(); isBest(evaluation, node) { // the state with bindings in the order of their writes
		return evaluation, false
	}

	around, ordered := h.podsAround(item)
	known := h.isKnown(item)
	if len(around) == 0 {
		return evaluation, !known
	}
	evaluation = h.evaluateWith(around, func(o *rivalPod) bool { return o.ahead }, evaluate)
	switch {
	case isBest(evaluation, node), known && ordered:
		return evaluation, false
	case !known || len(around) > mostUnordered:
		return evaluation, true
	}

	// Bit i of subset is set if the pod around[i] was decided before the judged pod.
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

	for uid := range h.foreseen { // the arrival time of a pod never observed as pending is unknown
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

// isBehind reports whether the scheduler's bindings are, or recently were, late. In that case the
// binding of a pod found unschedulable earlier may also be late.
func (h *reconstruction) isBehind() bool {
	return !h.late.IsZero() && h.now.Sub(h.late) < 10*MaxBindingDelay
}

// mayHaveNode reports whether the scheduler may have decided another pod before the judged one even
// though the binding of the other pod has not arrived.
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

// isBest reports whether this node has the highest total score, possibly shared with other nodes.
func isBest(e *decide.Evaluation, node string) bool {
	return e.Err == nil && slices.ContainsFunc(e.Best(), func(v *decide.NodeVerdict) bool { return v.Node.Name == node })
}
