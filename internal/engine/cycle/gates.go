// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file keeps gated pods out of the active queue (PreEnqueue), and all members of a group while
// one of them is gated.

// firstRejection returns the plugin that gates a pod, or "". It implements Queue.Admit. A pod of a
// group must also pass the gate of its group. Since the other members wait for the pod, a rejection
// by its own gate is first recorded for the group.
func (fs *profiles) firstRejection(item *queue.Item) string {
	p := fs.byName[item.Pod.Spec.SchedulerName]
	if p == nil {
		return ""
	}
	own := ""
	for _, gate := range p.gates {
		if own = gate(item); own != "" {
			break
		}
	}
	if g := fs.groupOf(item); g != nil {
		fs.podGroups.held.noteHeld(g, item.Pod.UID, own)
		if own == "" {
			return fs.groupGate(item, g)
		}
	}
	return own
}

// groupGate names the obstacle for a member that passed its own gates. The obstacle is a missing
// PodGroup, too few pods to schedule a gang as a whole, a gate that rejects another member, or room
// being made for the group.
func (fs *profiles) groupGate(item *queue.Item, g *groups.Group) string {
	switch by := fs.podGroups.held.heldBy(g); {
	case fs.podGroups.progress.isIncomplete(g):
		return groups.GangScheduling
	case by != "":
		return by
	case fs.preemptions.makesRoomFor(g):
		return fs.preempterOf(item)
	}
	return ""
}

// preempterOf names the plugin that makes room for a pod. If no plugin does so after a change of
// the profiles, it returns GangScheduling.
func (fs *profiles) preempterOf(item *queue.Item) string {
	if p := fs.byName[item.Pod.Spec.SchedulerName]; p != nil {
		for _, name := range p.At[plugins.PostFilter] {
			if _, ok := p.Plugin(name).(plugins.Preempter); ok {
				return name
			}
		}
	}
	return groups.GangScheduling
}

// makesRoomFor reports whether removals for a group, or for its tree, are outstanding. Until the
// removals complete, the pods of the group are gated.
func (pr *preemptions) makesRoomFor(g *groups.Group) bool {
	if root := g.Root(); root != nil && pr.rounds[root.UID()] != nil {
		return true
	}
	return g.Object != nil && pr.rounds[g.Object.UID] != nil
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
