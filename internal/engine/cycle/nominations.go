// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// nominations reserve room on nodes for pods that wait for their victims to terminate, or that
// other clients have nominated. The cluster model keeps nominations by the name of the node, even
// while the node is unknown.
//
// Only an item of the queue has a nomination. An ungrouped pod may have a nomination while it is
// gated. A member of a pod group may have one only after it has passed its gates. A pod gated
// because of its group loses its nomination in the next clearGated.
type nominations struct {
	*common
	ready  *readiness
	events *clusterEvents
	// ofGroups is set if group priorities are enabled.
	ofGroups bool
	// keepsOut reports whether a group gates its pods, because the group is incomplete or a gate
	// rejects one of its pods. It returns false while room is being made for the group.
	keepsOut func(*groups.Group) bool
	doubtful []types.UID // pods gated because of their groups since the last clearGated
	// lent holds the pods nominated only for the current attempt. These nominations are not from a
	// client, and are not written to a status.
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

// setNomination records the nominated node of a pod after its attempt. An empty name clears the
// nomination. nil leaves the nomination unchanged, unless the nomination was made only for this
// attempt (see lent). A pod that keeps its node keeps its position among the nominated pods of that
// node.
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
	contender := ns.asContender(attempt.Waiting, attempt.Pod)
	ns.clearNomination(attempt.Pod.UID)
	if *node != "" {
		p := *contender
		ns.cluster.Nominate(&p, *node)
	}
}

// nominatePod nominates a queued pod to a node, replacing any earlier nomination.
func (ns *nominations) nominatePod(item *queue.Item, node string) {
	p := cluster.NewPod(item.Class, item.Pod.Name, item.Pod.UID)
	p.Created = cluster.TimeOf(item.Pod.CreationTimestamp.Time)
	ns.cluster.Nominate(ns.asContender(p, item.Pod), node)
}

// podAdmitted adopts the nomination of a pod that passed its gates.
func (ns *nominations) podAdmitted(item *queue.Item) {
	if node := item.Pod.Status.NominatedNodeName; node != "" && !item.Resizes() && ns.cluster.Nominated(item.Pod.UID) == nil {
		ns.nominatePod(item, node)
	}
}

// followClient adopts a nomination set or cleared by another client. If this scheduler has already
// decided otherwise, its own write has not been observed yet, and its decision takes precedence. A
// newly nominated pod must be tried, so that it either uses or releases the room reserved for it.
func (ns *nominations) followClient(item *queue.Item, pod *v1.Pod, p *cluster.Pod) (nominated bool) {
	was, is := item.Pod.Status.NominatedNodeName, pod.Status.NominatedNodeName
	current := ""
	if nominated := ns.cluster.Nominated(pod.UID); nominated != nil {
		current = nominated.Nominated
	}
	// The nomination is this scheduler's own. If the scheduler has given it up, it has replaced a
	// nomination adopted since then, which no later version of the pod shows.
	if is != "" && is == ns.unseenNomination(item) {
		if current != is {
			ns.clearNomination(pod.UID)
		}
		return false
	}
	// A decision that this scheduler made since it last observed the pod is newer than the client's
	// write.
	if was == is || current != was || item.Admitted.IsZero() && ns.groupOf(item) != nil || ns.isKeptOut(item) {
		return false
	}
	contender := ns.asContender(p, pod)
	ns.clearNomination(pod.UID)
	ns.cluster.Nominate(contender, is)
	return is != ""
}

// renewPod processes a new state of a possibly nominated pod. A pod with a new class may need less
// of its node than before, and the difference may help other pods.
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

// moveOn clears the nomination of a pod that loses its room on the nominated node. The pod is
// retried immediately.
func (ns *nominations) moveOn(p *cluster.Pod) {
	ns.clearNomination(p.UID())
	item := ns.queue.Get(p.UID())
	if item == nil {
		return
	}
	none := ""
	ns.addAction(WriteStatus{Pod: item.Pod, Nominate: &none})
	ns.queue.Wake(p.UID(), queue.ForceActivate, ns.now)
}

// asContender returns a waiting pod with the priority with which it competes for room: the priority
// of its PodGroup, if group priorities are enabled. Nominations must use the same priority;
// otherwise two groups could take the room from each other forever.
func (ns *nominations) asContender(p *cluster.Pod, pod *v1.Pod) *cluster.Pod {
	if !ns.ofGroups {
		return p
	}
	g := ns.groups.GroupOf(p.UID())
	if g == nil || g.Object == nil || g.Priority() == p.Class.Priority {
		return p
	}
	as := *pod
	as.Spec.Priority = new(g.Priority())
	contender := ns.cluster.Pending(&as)
	contender.SetNominated(p.Nominated)
	return contender
}

// podMoved handles the moves of pods in the queue. The queue calls it during a move, so podMoved
// must not change the queue or nominations: doubtful pods are examined later.
func (ns *nominations) podMoved(item *queue.Item, label string) {
	ns.observer().Queued(item.Place(), label)
	if ns.isKeptOut(item) && ns.cluster.Nominated(item.Pod.UID) != nil {
		ns.doubtful = append(ns.doubtful, item.Pod.UID)
	}
}

// isKeptOut reports whether a pod is gated because of its group.
func (ns *nominations) isKeptOut(item *queue.Item) bool {
	g := ns.groupOf(item)
	return item.Gate != "" && g != nil && ns.keepsOut(g)
}

// clearGated clears the nominations of pods gated because of their groups, because the time of
// their next attempt is unknown and other pods can use the room. This may rerun the gates of
// further pods.
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
