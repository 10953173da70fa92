// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// noteHeld records the pod-level gate that rejects a member, or "" if no such gate does.
func (hm *heldMembers) noteHeld(g *groups.Group, uid types.UID, gate string) {
	before := len(hm.held[g])
	switch {
	case gate != "" && before == 0:
		hm.held[g] = map[types.UID]string{uid: gate}
	case gate != "":
		hm.held[g][uid] = gate
	default:
		delete(hm.held[g], uid)
	}

	if len(hm.held[g]) == 0 {
		delete(hm.held, g)
	}
	if (before == 0) != (len(hm.held[g]) == 0) {
		hm.changed = append(hm.changed, g)
	}
}

// heldBy returns a pod-level gate that rejects a member of the group, or of another group of its
// tree, and thereby gates the whole group. It returns "" if there is no such gate.
func (hm *heldMembers) heldBy(g *groups.Group) (gate string) {
	if len(hm.held) == 0 {
		return ""
	}
	for _, g := range g.Tree() {
		for _, name := range hm.held[g] {
			if gate == "" || name < gate {
				gate = name
			}
		}
	}
	return gate
}

// keepsOut reports whether the group gates its pods.
func (gs *podGroups) keepsOut(g *groups.Group) bool {
	return gs.progress.isIncomplete(g) || gs.held.heldBy(g) != ""
}

// regateHeld reruns the gates for the members of each group that has a gated member but had none
// before, or that had gated members but has none now.
func (gs *podGroups) regateHeld() {
	for len(gs.held.changed) > 0 {
		g := gs.held.changed[0]
		gs.held.changed = gs.held.changed[1:]
		if gs.held.heldBy(g) == "" {
			gs.wakeMembers(g, queue.Appeared, queue.Gated)
			continue
		}
		for _, item := range gs.listMembers(g, queue.Active, queue.Backoff) {
			gs.queue.Recheck(item.Pod.UID, "PodGroupIncomplete", gs.now)
		}
		gs.wakeMembers(g, "PodGroupIncomplete", queue.Waiting)
	}
	gs.held.changed = nil
}

// isIncomplete reports whether the group gates its pods because the PodGroup is missing, or because
// there are too few pods to schedule a gang as a whole. A group in a tree gates its pods only if
// the whole tree is incomplete. If the tree is complete, an incomplete group in it is decided, and
// found to be incomplete, while the other groups of the tree are placed.
func (gp *groupProgress) isIncomplete(g *groups.Group) bool {
	if g.Object != nil && g.Parent() != nil {
		root := g.Root()
		return root == nil || !gp.isReady(groups.Child{Composite: root})
	}
	return g.Object == nil || g.Count() < g.MinCount() && !gp.isStarted(g)
}
