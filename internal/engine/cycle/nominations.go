// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// nominations hold room on nodes for pods waiting for their victims to terminate, or nominated by
// other clients. The cluster model has them by the name of the node, even while the node is
// unknown.
//
// Only an item of the queue has a nomination, gated or not; a member of a pod group only once its
// gates have let it in. A pod kept out by its group loses its nomination with the next lapse.
type nominations struct {
	*common
	ready  *readiness
	events *clusterEvents
	// ofGroups: group priorities are enabled.
	ofGroups bool
	// keepsOut reports whether a group keeps its pods out: it is incomplete, or a gate keeps one of
	// them out. It is false for a group with room being made for it.
	keepsOut func(*groups.Group) bool
	doubtful []types.UID // pods that their groups have kept out since the last lapse
	// lent: pods nominated only for the current attempt, by no client and in no status.
	lent map[types.UID]bool
}

// clearNomination clears a pod's nomination, which may make room for other pods on that node.
func (ns *nominations) clearNomination(uid types.UID) {
	delete(ns.lent, uid)
	if p := ns.cluster.Nominated(uid); p != nil {
		ns.cluster.Unnominate(uid)
		ns.events.podRemoved(p, ns.cluster.Node(p.Nominated), nil)
	}
}

// setNomination records the nominated node of a pod after its attempt; an empty name clears it, nil
// leaves it unchanged unless it was for this attempt only. A pod that keeps its node keeps its
// place among the nominated pods of that node.
func (ns *nominations) setNomination(attempt *Attempt, item *queue.Item, node *string) {
	if node == nil && ns.lent[attempt.Pod.UID] {
		node = new(string)
	}
	delete(ns.lent, attempt.Pod.UID)
	if node == nil || ns.queue.Get(attempt.Pod.UID) != item {
		return
	}
	if current := ns.cluster.Nominated(attempt.Pod.UID); *node != "" && current != nil && current.Nominated == *node {
		return
	}
	ns.clearNomination(attempt.Pod.UID)
	if *node != "" {
		p := *ns.asContender(attempt.Waiting, attempt.Pod)
		ns.cluster.Nominate(&p, *node)
	}
}

// nominatePod nominates a queued pod to a node, replacing any earlier nomination.
func (ns *nominations) nominatePod(item *queue.Item, node string) {
	p := cluster.NewPod(item.Class, item.Pod.Name, item.Pod.UID)
	p.Created = cluster.TimeOf(item.Pod.CreationTimestamp.Time)
	ns.cluster.Nominate(ns.asContender(p, item.Pod), node)
}

// lendRoom nominates a pod to a node for the next attempt. If the pod fits nowhere, the room is
// released: a pod that may not preempt would otherwise keep it for as long as it waits.
func (ns *nominations) lendRoom(item *queue.Item, node string) {
	ns.nominatePod(item, node)
	ns.lent[item.Pod.UID] = true
}

// podArrived adopts the nomination of a new pod. It holds room for the pod even while a gate keeps
// the pod out.
func (ns *nominations) podArrived(item *queue.Item) {
	if ns.groupOf(item) == nil {
		ns.podAdmitted(item)
	}
}

// podAdmitted adopts the nomination of a pod that passed its gates.
func (ns *nominations) podAdmitted(item *queue.Item) {
	if node := item.Pod.Status.NominatedNodeName; node != "" && ns.cluster.Nominated(item.Pod.UID) == nil {
		ns.nominatePod(item, node)
	}
}

// followClient adopts a nomination set or cleared by another client. If this scheduler has already
// decided otherwise, its own write has not been observed yet, and its decision holds. A newly
// nominated pod must be tried, so that it takes the room kept for it or gives it up.
func (ns *nominations) followClient(item *queue.Item, pod *v1.Pod, p *cluster.Pod) (nominated bool) {
	was, is := item.Pod.Status.NominatedNodeName, pod.Status.NominatedNodeName
	current := ""
	if nominated := ns.cluster.Nominated(pod.UID); nominated != nil {
		current = nominated.Nominated
	}
	// It is this scheduler's own, given up meanwhile.
	if is != "" && is == ns.unseenNomination(item) {
		return false
	}
	// This scheduler's decisions since it last saw the pod are newer than the client's write.
	if was == is || current != was || item.Admitted.IsZero() && ns.groupOf(item) != nil || ns.isKeptOut(item) {
		return false
	}
	ns.clearNomination(pod.UID)
	if is != "" {
		ns.cluster.Nominate(ns.asContender(p, pod), is)
	}
	return is != ""
}

// renewPod processes a new state of a possibly nominated pod. A new class may need less of its node
// than before, and the difference may help other pods.
func (ns *nominations) renewPod(p *cluster.Pod, pod *v1.Pod) {
	was := ns.cluster.Nominated(pod.UID)
	if was == nil {
		return
	}

	is := ns.asContender(p, pod)
	ns.cluster.Renew(is)
	if was.Class != is.Class {
		ns.events.podRemoved(was, ns.cluster.Node(was.Nominated), nil)
	}
}

// moveOn clears the nomination of a pod with too little room on its nominated node. The pod is
// retried immediately.
func (ns *nominations) moveOn(p *cluster.Pod) {
	ns.clearNomination(p.UID)
	item := ns.queue.Get(p.UID)
	if item == nil {
		return
	}
	none := ""
	ns.addAction(WriteStatus{Pod: item.Pod, Nominate: &none})
	ns.queue.Wake(p.UID, queue.ForceActivate, ns.now)
}

// asContender returns a waiting pod in the form used when competing with other pods for room: with
// the priority of its PodGroup, if group priorities are enabled. The same holds for its nomination;
// otherwise two groups could take the room from each other forever.
func (ns *nominations) asContender(p *cluster.Pod, pod *v1.Pod) *cluster.Pod {
	if !ns.ofGroups {
		return p
	}
	g := ns.groups.GroupOf(p.UID)
	if g == nil || g.Object == nil || g.Priority() == p.Class.Priority {
		return p
	}
	as := *pod
	as.Spec.Priority = new(g.Priority())
	contender := ns.cluster.Pending(&as)
	contender.SetNominated(p.Nominated)
	return contender
}

// podMoved follows the places of pods in the queue. The queue calls it in the middle of a move, so
// it must not change anything: doubtful pods are examined later.
func (ns *nominations) podMoved(item *queue.Item, label string) {
	ns.observer().Queued(item.Place(), label)
	if ns.isKeptOut(item) && ns.cluster.Nominated(item.Pod.UID) != nil {
		ns.doubtful = append(ns.doubtful, item.Pod.UID)
	}
}

// isKeptOut reports whether its group keeps a gated pod out.
func (ns *nominations) isKeptOut(item *queue.Item) bool {
	g := ns.groupOf(item)
	return item.Gate != "" && g != nil && ns.keepsOut(g)
}

// clearGated clears the nominations of pods kept out by their groups: the time of their next
// attempt is unknown, and other pods can use the room. This may rerun the gates of further pods.
func (ns *nominations) clearGated() {
	for len(ns.doubtful) > 0 {
		uid := ns.doubtful[0]
		ns.doubtful = ns.doubtful[1:]
		if item := ns.queue.Get(uid); item != nil && ns.isKeptOut(item) {
			if ns.clearNomination(uid); ns.ready.mayDecide() {
				ns.addAction(WriteStatus{Pod: item.Pod, Nominate: new(string)})
			}
		}
	}
	ns.doubtful = nil
}

// takesLong reports whether the pod's binding waits for another party: an out-of-tree plugin, or
// the controller or driver awaited by Berth's own plugin. Claims with only writes pending take as
// long as the binding does, and the nomination would be one more write.
func (b *placement) takesLong() bool {
	return slices.ContainsFunc(slices.Concat(b.prepare.groups...), func(plugin string) bool {
		own := b.ownWork(plugin)
		return own == nil || own.next.needed == nil || own.next.needed(b)
	})
}

// nominateStep replaces a plugin's name in preparation.running for the write of the nomination.
const nominateStep = "-"

// nominateHandler handles the outcome of the write of the nomination. If that failed, the pod
// continues without it.
type nominateHandler struct {
	ps *placements
	b  *placement
}

// handleOutcome starts the first group unless the pod is still held: then the last PermitAllowed
// does.
func (e nominateHandler) handleOutcome(o Outcome) {
	b := e.b
	// No watch will show it.
	if n := b.item.Nominating; n != nil && n.Node == b.Node && (o.Fault != nil || o.Withdrawn) {
		b.item.Nominating = nil
	}
	if b.ending != nil { // the preparation ended without waiting for this
		return
	}
	clear(b.prepare.running)
	if b.permit == nil || b.permit.over {
		e.ps.nextGroup(b)
	}
}
