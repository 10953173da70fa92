// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// intake processes pods and nodes shown by the API.
//
// A pod to be scheduled by one of the profiles is an item of the queue until a watch shows it
// bound, ended or deleted; a pod of another scheduler name is in unserved if the name may be served
// one day. A pod removed from the queue has neither a nomination nor a recorded failure.
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

	named    func(cluster.Name) (uid types.UID, known bool) // a pod that is known
	unserved map[types.UID]unservedPod                      // pending pods of scheduler names without a profile
	trimmer  podTrimmer

	mostUnserved int // see cluster.Shrunk
}

// seePod processes a pod shown by the API; old is its previous state, if kept. A pod may first
// appear in any state: a list shows all changes since the last one combined.
func (in *intake) seePod(pod, old *v1.Pod) {
	if in.options.Objects != nil {
		if rules.IsTerminal(pod) {
			in.options.Objects.PodGone(pod.UID)
		} else {
			in.options.Objects.Pod(pod)
		}
	}
	served := in.profiles.servesName(pod.Spec.SchedulerName)
	defer in.podGroups.addPod(pod, served)()
	switch {
	case pod.Spec.NodeName != "" || rules.IsTerminal(pod):
		in.placedPod(pod, old)
	case pod.DeletionTimestamp != nil:
		in.endPlacement(pod.UID, errGone)
		in.dropPending(pod.UID)
	case !served:
		in.unserved[pod.UID] = unservedPod{nameOf(pod), pod.Spec.SchedulerName}
		in.unserved = cluster.Shrunk(in.unserved, &in.mostUnserved)
	case in.cluster.Pod(pod.UID) != nil: // placed in its former state; if it returns to the queue, the new state counts
		if item := in.queue.Get(pod.UID); item != nil {
			// A nomination is not adopted here: this scheduler has chosen a node.
			in.updateItem(item, pod, in.cluster.Pending(pod), 0)
		}
	default:
		delete(in.unserved, pod.UID)
		in.pendingPod(pod)
	}
}

// pendingPod processes a pod to be scheduled. A pod already in the queue may be at any place there.
func (in *intake) pendingPod(pod *v1.Pod) {
	p := in.cluster.Pending(pod)
	item := in.queue.Get(pod.UID)
	if item == nil {
		item = in.queue.Add(in.trimmer.trimPod(pod, p.Class), p.Class, in.now)
		// Attempts for a whole group cost other pods more: a group does not retry before the end of
		// its back-off.
		item.Patient = in.groupOf(item) != nil
		in.nominations.podArrived(item)
		return
	}
	nominated := in.nominations.followClient(item, pod, p)
	in.nominations.renewPod(p, pod)
	var least queue.Action
	if in.events.outside && item.Pod.ResourceVersion != pod.ResourceVersion {
		least = queue.Update // plugins interested in pod updates hear of every one
	}
	in.updateItem(item, pod, p, least)
	// The pod may be Waiting, and nothing else would trigger its retry.
	if nominated {
		in.queue.Wake(pod.UID, queue.Changed, in.now)
	}
}

// updateItem processes the new state of a pending pod. least is the change reported if no other
// change is found.
func (in *intake) updateItem(item *queue.Item, pod *v1.Pod, p *cluster.Pod, least queue.Action) {
	pod = in.trimmer.trimPod(pod, p.Class)
	if n := item.Nominating; n != nil && n.Node == pod.Status.NominatedNodeName {
		item.Nominating = nil
	}
	actions := podChanges(item.Pod, pod, p.Class != item.Class)
	if actions == 0 {
		actions = least
	}
	in.queue.Update(item, pod, p.Class, actions, in.now)
}

// unservedPod is a pending pod of a scheduler name without a profile. Only its name is kept. If a
// profile for it is configured, the pod is fetched.
type unservedPod struct {
	cluster.Name
	scheduler string
}

// keepWhole decides whether pods are kept whole from now on. Pods already pending are fetched again
// from Options.Objects.
func (in *intake) keepWhole(whole bool) {
	if whole && !in.trimmer.whole && in.options.Objects != nil {
		for item := range in.queue.Each {
			in.restorePod(item)
		}
	}
	in.trimmer.whole = whole
}

// restorePod replaces the trimmed form of a pod by the whole object, if kept elsewhere.
func (in *intake) restorePod(item *queue.Item) {
	if pod := in.options.Objects.Shown(item.Pod.UID); pod != nil {
		item.Pod = pod
	}
}

// readPod processes a fetched pod. It may be older than the state shown by the watch, so it counts
// only if the watch cannot have shown more: for an unserved pod, and for a pod found on another
// node by a binding.
func (in *intake) readPod(pod *v1.Pod) {
	_, unserved := in.unserved[pod.UID]
	if unserved && pod.Spec.NodeName == "" || in.placements.byPod[pod.UID] != nil && pod.Spec.NodeName != "" {
		in.seePod(pod, nil)
	}
}

// dismissUnserved removes pods with an unserved scheduler name from the queue, and retries the
// remaining ones.
func (in *intake) dismissUnserved() {
	for _, item := range in.queue.Sorted() {
		pod := item.Pod
		if in.profiles.servesName(pod.Spec.SchedulerName) {
			in.queue.Wake(pod.UID, queue.ForceActivate, in.now)
			continue
		}
		name := unservedPod{nameOf(pod), pod.Spec.SchedulerName}
		in.dropPending(pod.UID)
		in.unserved[pod.UID] = name
		in.unserved = cluster.Shrunk(in.unserved, &in.mostUnserved)
	}
}

// fetchServed fetches the pending pods of newly served scheduler names, in a fixed order. Each
// enters the queue when its Read arrives.
func (in *intake) fetchServed() {
	for _, uid := range slices.Sorted(maps.Keys(in.unserved)) {
		if pod := in.unserved[uid]; in.profiles.servesName(pod.scheduler) {
			in.addAction(ReadPod{pod.Name})
		}
	}
}

// dropPending removes a pod from the queue and from all state about pending pods.
func (in *intake) dropPending(uid types.UID) {
	if g := in.groups.GroupOf(uid); g != nil {
		in.podGroups.held.noteHeld(g, uid, "")
	}
	in.queue.Remove(uid)
	in.decisions.forgetFailure(uid)
	in.nominations.clearNomination(uid)
	delete(in.unserved, uid)
	in.unserved = cluster.Shrunk(in.unserved, &in.mostUnserved)
}

// endPlacement ends the placement, if any, of a pod deleted or bound by another client. Its
// reservations are released immediately, or with the last outcome of outstanding actions.
func (in *intake) endPlacement(uid types.UID, why *Fault) {
	if b := in.placements.abandonPod(uid, why); b != nil {
		in.preemptions.forgetVictim(uid)
		in.podGroups.memberLost(b, why)
	}
}

// placedPod processes a placed or ended pod. It may have been bound by this scheduler, by another
// one, or before this scheduler was started.
func (in *intake) placedPod(pod, old *v1.Pod) {
	// A shadow judges the binding before the model has it.
	in.attempts.compare(pod)
	if b := in.placements.byPod[pod.UID]; b != nil {
		if pod.Spec.NodeName == b.Node && !rules.IsTerminal(pod) {
			in.placements.confirmBound(b)
		} else { // another client bound it, or it has ended
			in.endPlacement(pod.UID, errBoundElsewhere)
		}
	}
	// Its nominated room on another node is free now, which may help other pods; on its own node it
	// takes the room itself.
	if nominated := in.cluster.Nominated(pod.UID); nominated != nil && nominated.Nominated != pod.Spec.NodeName {
		in.nominations.clearNomination(pod.UID)
	}
	in.dropPending(pod.UID)
	before := in.cluster.Pod(pod.UID)
	var was cluster.Pod // a copy: SetPod may change it
	var at *cluster.Node
	if before != nil {
		was, at = *before, before.Node
	}
	after := in.setPod(pod)
	switch {
	case before == nil && after != nil:
		in.events.podAdded(after, pod)
	case before != nil && after == nil:
		in.events.podRemoved(&was, at, pod)
	case before != nil && before != after:
		in.events.changedPlaced(&was, at, after, old, pod)
	case before != nil && in.events.outside && old != nil && old.Spec.NodeName == pod.Spec.NodeName && !sameVersion(old, pod):
		in.events.addEvent(queue.Event{
			Resource: queue.Pod, Action: podChanges(old, pod, true), Label: "AssignedPodUpdate", PodBefore: before,
			Pod: after, Node: after.Node,
			Old: old, New: pod,
		})
	}
}

// setPod puts a pod into the cluster model. A victim counts as terminating until a watch shows it
// so.
func (in *intake) setPod(pod *v1.Pod) *cluster.Pod {
	p := in.cluster.SetPod(pod)
	in.preemptions.noteLeaver(pod.UID, p)
	if !in.preemptions.leaving[pod.UID] {
		return p
	}
	if p == nil || pod.DeletionTimestamp != nil {
		in.preemptions.forgetVictim(pod.UID)
		return p
	}
	return in.preemptions.replaceAs(p, true)
}

// losePod forgets a deleted pod. last is its last state, or nil if unknown, as after a list without
// the pod.
func (in *intake) losePod(last *v1.Pod, uid types.UID) {
	if in.options.Objects != nil {
		in.options.Objects.PodGone(uid)
	}
	in.endPlacement(uid, errGone)
	in.dropPending(uid)
	in.podGroups.removePod(uid)
	in.preemptions.forgetVictim(uid)
	in.preemptions.noteLeaver(uid, nil)

	p := in.cluster.Pod(uid)
	if p == nil {
		in.preemptions.isGone(uid)
		return
	}

	n := p.Node
	in.cluster.RemovePod(uid)
	in.preemptions.isGone(uid)
	in.events.podRemoved(p, n, last)
}

// seeNode processes a node shown by the API. An update irrelevant to decisions produces no event.
func (in *intake) seeNode(node *v1.Node, old *v1.Node) {
	if in.options.Objects != nil {
		in.options.Objects.Node(node)
	}
	var before *cluster.Node
	if n := in.cluster.Node(node.Name); n != nil {
		was := *n
		before = &was
	}
	n := in.cluster.SetNode(node)
	in.events.nodeChanged(before, n, old, node)
}

// loseNode forgets a deleted node. Pods being placed on it return to the queue. Its running pods
// stay in the model, without a node, until a watch shows their deletion: the node may return under
// its name.
func (in *intake) loseNode(name string, last *v1.Node) {
	if in.options.Objects != nil {
		in.options.Objects.NodeGone(name)
	}
	n := in.cluster.Node(name)
	if n == nil {
		return
	}
	// Events carry the previous state of the node; n itself is emptied below.
	before := n.Copy(nil)
	nominated := slices.Clone(n.Nominated)
	for _, b := range in.placements.placementsTo(name) {
		in.placements.stopBinding(b, errNodeGone)
	}
	in.cluster.RemoveNode(name)
	for _, p := range nominated { // they are tried again, and go elsewhere or lose their nomination
		in.queue.Wake(p.UID, "NodeDelete", in.now)
	}
	in.events.objects = true
	in.events.addEvent(queue.Event{Resource: queue.Node, Action: queue.Delete, Label: "NodeDelete", NodeBefore: before, Old: orNil(last)})
}
