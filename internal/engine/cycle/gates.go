// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
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

// addGates adds the gates of the profile's PreEnqueue plugins, in their order.
func (fs *profiles) addGates(p *servedProfile, byName map[string]Extension) {
	for _, name := range p.At[plugins.PreEnqueue] {
		rejects := fs.gateOf(p, name, byName)
		if rejects == nil {
			continue
		}

		p.gates = append(p.gates, func(item *queue.Item) string {
			began := fs.clock()
			rejected := rejects(item)
			if fs.rng.IntN(100) < sampled {
				fs.observer().RanPlugin(name, plugins.PreEnqueue, !rejected, fs.clock().Sub(began))
			}
			if rejected {
				return name
			}
			return ""
		})
	}
}

// gateOf returns the rejection function of a PreEnqueue plugin, or nil if the plugin never rejects
// pods.
func (fs *profiles) gateOf(p *servedProfile, name string, byName map[string]Extension) (rejects func(*queue.Item) bool) {
	if gate, ok := byName[name].(Gate); ok {
		return func(item *queue.Item) bool { return gate.Admit(item.Pod) != nil }
	}
	waiting := func(item *queue.Item) *cluster.Pod {
		return cluster.NewPod(item.Class, item.Pod.Name, item.Pod.UID)
	}
	switch gate := p.Plugin(name).(type) {
	case plugins.Gate:
		return func(item *queue.Item) bool { return gate.Admit(waiting(item)) != "" }
	case plugins.Preempter:
		return func(item *queue.Item) bool { return fs.preemptions.rounds[item.Pod.UID] != nil }
	case plugins.ObjectGate:
		var asked cluster.Pod // reused to save allocations
		return func(item *queue.Item) bool {
			asked = *cluster.NewPod(item.Class, item.Pod.Name, item.Pod.UID)
			return gate.PreEnqueue(fs.cluster, &asked) != ""
		}
	}
	return nil
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

// heldMembers holds, for each group, the members rejected by a pod-level gate, with the plugin. A
// single held member gates the whole group. changed lists the groups that have got their first
// gated member, or lost their last, since regateHeld last ran.
type heldMembers struct {
	held    map[*groups.Group]map[types.UID]string
	changed []*groups.Group
}

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
