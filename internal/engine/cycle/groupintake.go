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

// This file processes PodGroups and their members as the API shows them: it counts the members,
// gates and wakes them, and gives up the members of a gang that has lost too many.

// groupSeen processes an added or changed PodGroup.
func (gs *podGroups) groupSeen(object *groups.PodGroup) {
	if object.ManagedFields != nil { // otherwise no write: a journal may concurrently read an object already stripped
		object.ManagedFields = nil
	}
	gs.options.Objects.Group(object)
	g := gs.groups.Get(nameOf(object))
	fresh := g == nil || g.Object == nil || g.Object.UID != object.UID
	if fresh && gs.gates.Claims {
		if len(object.Spec.ResourceClaims) > 0 {
			gs.cluster.PodGroups.Set(object)
		} else {
			gs.cluster.PodGroups.Delete(object.Namespace, object.Name)
		}
	}
	least, scheduled := 0, false
	if g != nil {
		least, scheduled = g.MinCount(), g.Done || g.Scheduled()
	}

	if fresh && g != nil {
		g.Forget()
	}
	g = gs.groups.SetObject(object)
	if fresh && g.Parent() != nil {
		gs.regroup(g)
		gs.recheckMembers(g, "PodGroupAdd")
	}
	switch {
	case fresh || g.MinCount() != least:
		gs.wakeMembers(g, "PodGroupAdd", queue.Gated, queue.Waiting)
		gs.unitsChanged("PodGroupAdd", g.Together()...)
		g.Short, g.Full = 0, false // its requirement may be lower now
		gs.updateScheduled(g)
	case !scheduled:
		gs.wakeStarted(g)
	}
}

// groupGone processes the deletion of a PodGroup. Placements of its pods continue; its other pods
// are gated until the PodGroup exists again.
func (gs *podGroups) groupGone(name cluster.Name) {
	gs.options.Objects.GroupGone(name)
	var tree []*groups.Group
	if g := gs.groups.Get(name); g != nil {
		gs.unitsChanged("PodGroupDelete", g.Together()...)
		tree = g.Tree()
	}
	gs.groups.LoseObject(name)
	if gs.gates.Claims {
		gs.cluster.PodGroups.Delete(name.Namespace, name.Name)
	}

	if g := gs.groups.Get(name); g != nil {
		gs.regroup(g)
		gs.keepOut(g)
	}
	for _, other := range tree {
		if other.Object != nil {
			gs.recheckMembers(other, "PodGroupDelete") // covers the members of all groups of the tree
			break
		}
	}
}

// podSeen records a pod's membership in a group before the pod itself is processed. It returns the
// group, or nil if the pod belongs to no group, and the change of the number of its counted
// members. served is set if a profile serves the pod's scheduler name.
func (gs *podGroups) podSeen(pod *v1.Pod, served bool) (g *groups.Group, by int) {
	if !gs.gates.Generic {
		return nil, 0
	}
	g, by = gs.groups.SetPod(pod, pod.Spec.NodeName != "" || served)
	switch {
	case by <= 0:
	case g.Parent() != nil:
		gs.noteJoined(g, pod)
	case g.Count() == g.MinCount():
		gs.wakeMembers(g, queue.Appeared, queue.Gated)
	}
	return g, by
}

// noteJoined admits members after a pod has joined a group, which may complete the group or its
// tree. A pod that arrived with a node may complete the quorum of the waiting members.
func (gs *podGroups) noteJoined(g *groups.Group, pod *v1.Pod) {
	if pod.Spec.NodeName != "" && gs.cluster.Pod(pod.UID) == nil {
		gs.wakeMembers(g, queue.Appeared, queue.Waiting)
	}
	if g.Count() == leastOf(g) && !gs.progress.isIncomplete(g) {
		gs.wakeMembers(g, queue.Appeared, queue.Gated)
	}
}

// podProcessed updates the group of a pod, as returned by podSeen, after the pod was processed.
func (gs *podGroups) podProcessed(pod *v1.Pod, g *groups.Group, by int) {
	if g != nil {
		gs.noteCount(g, by)
		if pod.Spec.NodeName != "" {
			gs.updateScheduled(g)
			gs.wakeStarted(g)
		}
	} else { // the pod has ended, or belongs to no group
		gs.removePod(pod.UID)
	}
}

// removePod forgets a deleted or completed member.
func (gs *podGroups) removePod(uid types.UID) { gs.noteCount(gs.groups.LosePod(uid)) }

// noteCount gates the members after a removal that may have made the group incomplete: the count
// fell just below the minimum, or the group was scheduled and may have lost its last bound pod.
// Other removals are skipped, because thousands of members may be removed in succession.
func (gs *podGroups) noteCount(g *groups.Group, by int) {
	least := 0
	if g != nil {
		least = g.MinCount()
		if g.Parent() != nil {
			least = leastOf(g)
		}
	}
	if by < 0 {
		g.Full, g.Woken = false, false
	}
	if by < 0 && (g.Count() == least-1 || g.Done || g.Scheduled()) {
		gs.keepOut(g)
	}
}

// keepOut gates the members of a group that has become incomplete. It reruns the gates for waiting
// members, and also for gated members: a member that was gated because room is being made for the
// group is now gated because the group is incomplete.
func (gs *podGroups) keepOut(g *groups.Group) {
	if gs.progress.isIncomplete(g) {
		gs.wakeMembers(g, "PodGroupIncomplete", queue.Waiting, queue.Gated)
	}
}

// memberLost handles the siblings of a pod with a failed binding. The placements of all siblings
// are withdrawn in the same step if the pod was deleted, refused or preempted, and its gang is
// incomplete without the pod and has no bound pod. If an error concerned only this pod, or its node
// was deleted, the pod is retried and its siblings keep their placements.
func (gs *podGroups) memberLost(item *queue.Item, why error) {
	g := gs.groupOf(item)
	if g == nil || why == error(errGroupBroken) || !breaks(why) || gs.progress.isStarted(g) {
		return
	}

	var siblings []*placement
	for _, g := range gs.listBroken(g) {
		for uid := range g.Members {
			if other := gs.placements.byPod[uid]; other != nil && other.ending == nil {
				siblings = append(siblings, other)
			}
		}
	}

	slices.SortFunc(siblings, func(a, b *placement) int { return a.item.Compare(b.item) })
	for _, other := range siblings {
		gs.placements.stopBinding(other, errGroupBroken)
	}
}

// listBroken lists the groups to give up after the loss of a member. It lists the group itself, if
// it can no longer be placed as a whole, and the groups of the tree that cannot be placed without
// it.
func (gs *podGroups) listBroken(g *groups.Group) []*groups.Group {
	if g.Parent() != nil {
		return gs.listBrokenInTree(g)
	}
	if gs.progress.countPlaced(g) >= g.MinCount() || gs.progress.countBound(g) > 0 {
		return nil
	}
	return []*groups.Group{g}
}

// breaks reports whether the error means that the group has lost the pod. After any other error,
// the pod is only retried.
func breaks(why error) bool {
	switch why := why.(type) {
	case *rejection:
		return true
	case *Fault:
		return why.Verdict || *why == *ErrGone || why == errPreempted
	}
	return false
}

// errGroupBroken ends the pending placements of members of a gang that can no longer be scheduled
// as a whole.
var errGroupBroken = &Fault{
	Message: "pod group is unschedulable: too few of its pods are left to be scheduled together", Verdict: true,
}
