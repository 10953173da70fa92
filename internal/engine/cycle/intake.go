// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// intake processes pods and nodes shown by the API.
//
// A pod to be scheduled by one of the profiles is an item of the queue until a watch shows it
// bound, ended or deleted. A pending pod of any other scheduler name is in unserved, because a
// profile may serve the name later. A pod removed from the queue has neither a nomination nor a
// recorded failure.
type intake struct {
	*common
	events      *clusterEvents
	nominations *nominations
	decisions   *decisions
	placements  *placements
	podGroups   *podGroups
	preemptions *preemptions
	profiles    *profiles
	attempts    *attempts
	reserved    *reservations

	unserved map[types.UID]unservedPod // pending pods of scheduler names without a profile
	trimmer  podTrimmer

	mostUnserved int // see cluster.Shrunk
}

// seePod processes a pod shown by the API; old is its previous state, if kept. A pod may first
// appear in any state, since a list combines all changes since the previous list.
func (i *intake) seePod(pod, old *v1.Pod) {
	if rules.IsTerminal(pod) {
		i.options.Objects.PodGone(pod.UID)
	} else {
		i.options.Objects.Pod(pod)
	}
	i.reserved.notePod(pod)
	served := i.profiles.servesName(pod.Spec.SchedulerName)
	group, joined := i.podGroups.podSeen(pod, served)
	switch {
	case pod.Spec.NodeName != "" || rules.IsTerminal(pod):
		i.placedPod(pod, old)
	case pod.DeletionTimestamp != nil:
		i.endPlacement(pod.UID, ErrGone)
		i.dropPending(pod.UID)
	case !served:
		i.unserved[pod.UID] = unservedPod{nameOf(pod), pod.Spec.SchedulerName}
		i.unserved = cluster.Shrunk(i.unserved, &i.mostUnserved)
	case i.cluster.Pod(pod.UID) != nil: // decided before this change, which matters only if the pod returns to the queue
		if item := i.queue.Get(pod.UID); item != nil {
			// A nomination is not adopted here: this scheduler has already chosen a node.
			i.updateItem(item, pod, i.cluster.Pending(pod), 0)
		}
	default:
		delete(i.unserved, pod.UID)
		i.pendingPod(pod)
	}
	i.podGroups.podProcessed(pod, group, joined)
}

// pendingPod processes a pod to be scheduled. A pod already in the queue may be in any place.
func (i *intake) pendingPod(pod *v1.Pod) {
	p := i.cluster.Pending(pod)
	item := i.queue.Get(pod.UID)
	if item == nil {
		item = i.queue.Add(i.trimmer.trimPod(pod, p.Class), p.Class, i.now)
		// An attempt for a whole group delays other pods for longer, so a group is not retried
		// before the end of its back-off.
		item.Patient = i.groupOf(item) != nil
		// The nomination of an ungrouped pod reserves room even while the pod is gated.
		if !item.Patient {
			i.nominations.podAdmitted(item)
		}
		return
	}
	i.nominations.renewPod(p, pod)
	nominated := i.nominations.followClient(item, pod, p)
	var least queue.Action
	if i.events.outOfTree && item.Pod.ResourceVersion != pod.ResourceVersion {
		least = queue.Update // plugins interested in pod updates receive every update
	}
	i.updateItem(item, pod, p, least)
	// The pod may be Waiting, and no event would trigger its retry.
	if nominated {
		i.queue.Wake(pod.UID, queue.Changed, i.now)
	}
}

// updateItem processes the new state of a pending pod. least is the action reported if no specific
// change is found.
func (i *intake) updateItem(item *queue.Item, pod *v1.Pod, p *cluster.Pod, least queue.Action) {
	pod = i.trimmer.trimPod(pod, p.Class)
	if n := item.Nominating; n != nil && n.Node == pod.Status.NominatedNodeName {
		item.Nominating = nil
	}
	if p.Class != item.Class {
		least = queue.Update
	}
	actions := podChanges(item.Pod, pod, resized(item.Class, p.Class))
	i.queue.Update(item, pod, p.Class, cmp.Or(actions, least), i.now)
}

// podChanges adds the potentially relevant changes of a pod to actions, which holds the changes of
// its requests. The scheduler's own writes do not count.
func podChanges(old, pod *v1.Pod, actions queue.Action) queue.Action {
	if !maps.Equal(old.Labels, pod.Labels) {
		actions |= queue.UpdatePodLabel
	}
	if len(old.Spec.Tolerations) != len(pod.Spec.Tolerations) {
		actions |= queue.UpdatePodToleration
	}

	if len(old.Spec.SchedulingGates) > 0 && len(pod.Spec.SchedulingGates) == 0 {
		actions |= queue.UpdatePodSchedulingGatesEliminated
	}
	if !reflect.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) ||
		!reflect.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus) {
		actions |= queue.UpdatePodGeneratedResourceClaim
	}

	if actions == 0 && (!maps.Equal(old.Annotations, pod.Annotations) || old.Generation != pod.Generation ||
		len(old.Spec.SchedulingGates) != len(pod.Spec.SchedulingGates)) {
		actions = queue.Update
	}
	return actions
}

// placedPod processes a placed or ended pod. It may have been bound by this or another scheduler,
// or before this scheduler was started.
func (i *intake) placedPod(pod, old *v1.Pod) {
	// A shadow judges the binding before it is added to the model.
	i.attempts.compare(pod)
	if b := i.placements.byPod[pod.UID]; b != nil {
		if pod.Spec.NodeName == b.Node && !rules.IsTerminal(pod) {
			i.placements.confirmBound(b)
		} else if pod.Spec.NodeName != "" { // another client bound the pod
			i.endPlacement(pod.UID, ErrBoundElsewhere)
		}
	}
	if pod.Spec.NodeName == "" { // it has ended without a node, and its group has lost it
		i.endPlacement(pod.UID, ErrGone)
	}
	resizes := i.preempts(pod)
	if !resizes || i.pendingItem(pod.UID) != nil {
		i.dropPending(pod.UID)
	}
	before := i.cluster.Pod(pod.UID)
	var was cluster.Pod // a copy, since SetPod may change the pod
	var at *cluster.Node
	if before != nil {
		was, at = *before, before.Node
	}
	after := i.preemptions.setPod(pod)
	if resizes {
		i.queueResize(pod)
	}
	var others queue.Action
	if i.events.outOfTree && before != nil && after != nil && old != nil {
		others = cmp.Or(podChanges(old, pod, resized(was.Class, after.Class)), queue.Update)
	}
	switch {
	case before == nil && after != nil:
		i.events.podAdded(after, pod)
	case before != nil && after == nil:
		i.events.podRemoved(&was, at, pod)
	case before != nil && before != after:
		i.events.changedPlaced(&was, at, after, old, pod, others)
	case others != 0 && old.Spec.NodeName == pod.Spec.NodeName && !sameVersion(old, pod):
		i.events.addEvent(queue.Event{
			Resource: queue.Pod, Action: others, Label: "AssignedPodUpdate", PodBefore: before, Pod: after, Node: after.Node,
			Old: old, New: pod,
		})
	}
}

// preempts reports whether a placed pod has a deferred resize for which other pods may be
// preempted.
func (i *intake) preempts(pod *v1.Pod) bool {
	return i.options.ResizePreemption && i.shadow == nil && helper.IsPodResizeDeferred(pod) &&
		!rules.IsTerminal(pod) && pod.DeletionTimestamp == nil && i.profiles.servesName(pod.Spec.SchedulerName)
}

// queueResize adds the deferred resize of a placed pod to the queue, or updates it.
func (i *intake) queueResize(pod *v1.Pod) {
	class := i.cluster.ResizeClass(pod)
	pod = i.trimmer.trimPod(pod, class)
	item := i.queue.Get(pod.UID)
	if item == nil {
		i.queue.Add(pod, class, i.now)
		return
	}
	i.queue.Update(item, pod, class, resized(item.Class, class), i.now)
}

// dropPending removes a pod from the queue and from all state about pending pods.
func (i *intake) dropPending(uid types.UID) {
	if g := i.groups.GroupOf(uid); g != nil {
		i.podGroups.held.noteHeld(g, uid, "")
	}
	i.queue.Remove(uid)
	i.decisions.forgetFailure(uid)
	i.nominations.clearNomination(uid)
	delete(i.unserved, uid)
	i.unserved = cluster.Shrunk(i.unserved, &i.mostUnserved)
}

// endPlacement ends the placement, if any, of a pod deleted or bound by another client. Its
// reservations are released immediately, or after the last outcome of its outstanding actions.
func (i *intake) endPlacement(uid types.UID, why *Fault) {
	item := i.queue.Get(uid)
	if b := i.placements.abandonPod(uid, why); b != nil {
		item = b.item
		i.preemptions.forgetVictim(uid)
	}
	if item != nil && len(i.placements.byPod) > 0 { // even if the pod had lost its placement before
		i.podGroups.memberLost(item, why)
	}
}

// losePod forgets a deleted pod. last is its last state. It is nil if the state is unknown, for
// example after a list without the pod.
func (i *intake) losePod(last *v1.Pod, uid types.UID) {
	i.options.Objects.PodGone(uid)
	delete(i.reserved.lives, uid)
	i.endPlacement(uid, ErrGone)
	i.dropPending(uid)
	i.podGroups.removePod(uid)
	i.preemptions.forgetVictim(uid)
	i.preemptions.noteLeaver(uid, nil)

	p := i.cluster.Pod(uid)
	if p == nil {
		i.preemptions.isGone(uid)
		return
	}

	n := p.Node
	i.cluster.RemovePod(uid)
	i.preemptions.isGone(uid)
	i.events.podRemoved(p, n, last)
}

// seeNode processes a node shown by the API. An update irrelevant to decisions produces no event.
func (i *intake) seeNode(node *v1.Node, old *v1.Node) {
	i.options.Objects.Node(node)
	var before *cluster.Node
	if n := i.cluster.Node(node.Name); n != nil {
		was := *n
		before = &was
	}
	n := i.cluster.SetNode(node)
	i.events.nodeChanged(before, n, old, node)
}

// loseNode forgets a deleted node. Pods being placed on it return to the queue, unless their Bind
// can no longer be stopped. Its bound pods stay in the model, without a node, until a watch shows
// their deletion, because the node may be recreated under the same name.
func (i *intake) loseNode(name string, last *v1.Node) {
	i.options.Objects.NodeGone(name)
	n := i.cluster.Node(name)
	if n == nil {
		return
	}
	// Events carry the previous state of the node; n itself is emptied below.
	before := n.Copy(nil)
	nominated := slices.Clone(n.Nominated)
	for _, b := range i.placements.placementsTo(name) {
		i.placements.stopBinding(b, errNodeGone)
	}
	i.cluster.RemoveNode(name)
	for _, p := range nominated { // they are retried, and either move to another node or lose their nomination
		i.queue.Wake(p.UID(), "NodeDelete", i.now)
	}
	i.events.objects = true
	i.events.addEvent(queue.Event{Resource: queue.Node, Action: queue.Delete, Label: "NodeDelete", NodeBefore: before, Old: orNil(last)})
}

// readPod processes a fetched pod. A fetched pod may be older than the state shown by the watch. It
// is used only if it is unserved, if its binding failed because another client had bound it, or if
// its binding is overdue. In these cases, the watch cannot have shown a newer state.
func (i *intake) readPod(pod *v1.Pod) {
	b := i.placements.byPod[pod.UID]
	if b != nil && b.overdue && pod.Spec.NodeName == "" {
		// The Bind had no effect. The attempt has ended, so the pod arrives a second time.
		i.losePod(pod, pod.UID)
		i.seePod(pod, nil)
		return
	}
	_, unserved := i.unserved[pod.UID]
	if unserved && pod.Spec.NodeName == "" || b != nil && pod.Spec.NodeName != "" {
		i.seePod(pod, nil)
	}
}

// unservedPod is a pending pod of a scheduler name without a profile. Only the name of the pod is
// kept. The pod is fetched if a profile for its scheduler name is configured.
type unservedPod struct {
	cluster.Name
	scheduler string
}

// podTrimmer decides which fields of pending pods the core keeps.
type podTrimmer struct {
	whole bool // pods are kept whole, for out-of-tree plugins
	specs latestSpecs
}

// trimPod returns the fields of a pending pod to keep. Pods of a class share the class's labels and
// its part of the spec, which would otherwise occupy two thirds of the scheduler's memory for ten
// thousand replicas. Out-of-tree plugins may read any field, so for them the pod is kept whole.
func (t *podTrimmer) trimPod(pod *v1.Pod, class *cluster.PodClass) *v1.Pod {
	if t.whole {
		return pod
	}
	m, spec := &pod.ObjectMeta, t.specOf(class)
	spec.Volumes, spec.ResourceClaims = pod.Spec.Volumes, pod.Spec.ResourceClaims
	spec.ActiveDeadlineSeconds, spec.NodeName = pod.Spec.ActiveDeadlineSeconds, pod.Spec.NodeName
	if !sameNames(spec.Containers, pod.Spec.Containers) || !sameNames(spec.InitContainers, pod.Spec.InitContainers) {
		spec.Containers, spec.InitContainers = pod.Spec.Containers, pod.Spec.InitContainers
	}

	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: class.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
			CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
			Labels: class.Labels.Map(), Annotations: m.Annotations, OwnerReferences: m.OwnerReferences,
		},
		Spec: spec, Status: pod.Status,
	}
}

// latestSpecs holds the specs of recently used classes, indexed by class modulo the number of
// entries. A small cache suffices for the pods of a class to share its containers, because they
// usually arrive together. Specs of very large classes are not kept, since their pods may already
// be deleted.
type latestSpecs [64]struct {
	class *cluster.PodClass
	spec  v1.PodSpec
}

// specOf returns the spec of a class as a pod spec. The value is copied; its pointers are shared by
// all pods of the class, and their targets must not be changed.
func (t *podTrimmer) specOf(class *cluster.PodClass) v1.PodSpec {
	if class.Bulk > cluster.MostBulk/len(t.specs) {
		return class.Spec.Object()
	}
	latest := &t.specs[uint32(class.ID)%uint32(len(t.specs))]
	if latest.class != class {
		latest.class, latest.spec = class, class.Spec.Object()
	}
	return latest.spec
}

// sameNames reports whether the containers have the same names: the name is the only field of a
// container that Berth writes and that the class does not determine.
func sameNames(a, b []v1.Container) bool {
	return slices.EqualFunc(a, b, func(x, y v1.Container) bool { return x.Name == y.Name })
}
