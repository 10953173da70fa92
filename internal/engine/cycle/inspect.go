// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file describes the state of the core and its past decisions to users.

// View is the state used by the core's decisions. It may only be read between steps.
type View struct {
	Cluster  *cluster.Cluster
	Queue    *queue.Queue
	Profiles map[string]Profile
	Groups   *groups.Set    // nil if pod groups are off
	Reserved []*Reservation // current reservations, the earliest first
}

// View returns the core's state. The maps of the View are copies. Their values, and the pointers,
// refer to the core's own state, which the next step changes.
func (c *Core) View() View {
	v := View{Cluster: c.cluster, Queue: c.queue, Profiles: map[string]Profile{}, Reserved: slices.Clone(c.reserved.held)}
	if c.podGroups.gates.Generic {
		v.Groups = c.groups
	}
	for name, p := range c.profiles.byName {
		v.Profiles[name] = p.Profile
	}
	return v
}

// Sizes counts the objects of a core, for metrics; see [Core.Sizes].
type Sizes struct {
	Active, Backoff, Unschedulable, Gated int // number of pods by place
	Nodes, Pods, Assumed                  int // number of objects in the cluster model
	// Entities counts pod groups and ungrouped pods in the queue.
	Entities queue.EntityCounts
}

// Sizes counts the core's objects.
func (c *Core) Sizes() Sizes {
	return Sizes{
		Active: c.queue.Len(queue.Active), Backoff: c.queue.Len(queue.Backoff), Unschedulable: c.queue.Len(queue.Waiting),
		Gated: c.queue.Len(queue.Gated), Entities: c.queue.Entities(),
		Nodes: c.cluster.Len(), Pods: c.cluster.Pods(), Assumed: len(c.placements.byPod),
	}
}

// Books lists pending work. All fields are empty when the cluster is at rest.
type Books struct {
	Assumed   []types.UID // pods on their way to a node
	Held      []types.UID // assumed pods that wait at Permit
	Preemptor []types.UID // preemptors with unanswered evictions
	Leaving   []types.UID // victims not yet observed as terminating
	Yielding  []types.UID // victims with an unfinished binding
	Unserved  []types.UID // pending pods of scheduler names without a profile
	Claims    int         // device claims with a use or release not yet observed by a watch
	Awaiting  int         // waits for objects
	Handlers  int         // unanswered actions
	Decisions int         // remembered decisions about pending pods
}

// Books returns the pending work.
func (c *Core) Books() Books {
	b := Books{
		Assumed: slices.Sorted(maps.Keys(c.placements.byPod)), Preemptor: slices.Sorted(maps.Keys(c.preemptions.rounds)),
		Leaving: slices.Sorted(maps.Keys(c.preemptions.leaving)), Unserved: slices.Sorted(maps.Keys(c.intake.unserved)),
		Claims:   len(c.claims.byName) + len(c.claims.releasing),
		Awaiting: len(c.placements.conditions), Handlers: len(c.handlers), Decisions: len(c.decisions.waiting),
	}
	for _, held := range c.placements.held {
		b.Held = append(b.Held, held.Pod.UID)
	}
	slices.Sort(b.Held)
	for victim := range c.preemptions.binding {
		b.Yielding = append(b.Yielding, victim.Pod.UID)
	}
	slices.Sort(b.Yielding)
	return b
}

// Decider returns the decider of a scheduler name, for queries on the state used by the core's
// decisions. It is nil if no profile serves the name.
func (c *Core) Decider(schedulerName string) *decide.Decider {
	if p := c.profiles.byName[schedulerName]; p != nil {
		return p.Decider
	}
	return nil
}

// Decided returns the decisions of the last step: one decision for each decided or requeued pod.
// They do not contain the pod's place in the queue. Most steps decide at most one pod. The pods of
// a group are decided together, and share the description of the group.
func (c *Core) Decided() []*decision.Decision {
	step := c.decisions.step
	if len(step) == 0 {
		return nil
	}

	last := make(map[types.UID]int, len(step))
	for i := range step {
		last[step[i].uid] = i
	}

	all := make([]*decision.Decision, 0, len(last))
	told := map[*groups.Group]*decision.Group{}
	for i := range step {
		o := &step[i]
		// A pod can be decided and requeued in one step, if a reservation or Permit fails. The
		// later outcome counts.
		if last[o.uid] != i {
			continue
		}
		d := &decision.Decision{APIVersion: decision.APIVersion, Kind: decision.Kind, Namespace: o.name.Namespace, Name: o.name.Name}
		o.fillDecision(d)
		if p := c.cluster.Nominated(o.uid); p != nil {
			d.NominatedNode = p.Nominated
		}
		if g := c.groups.GroupOf(o.uid); g != nil {
			if told[g] == nil {
				told[g] = c.podGroups.describeGroup(g)
			}
			d.Group = told[g]
		}
		all = append(all, d)
	}

	return all
}

// Decision returns the last decision about a pod, or nil if no decision is recorded.
func (c *Core) Decision(name cluster.Name) *decision.Decision {
	uid, known := c.mirrors[Pods].(*mirrored[*v1.Pod]).known[name] // the mirror is the index of pods by name
	item := c.queue.Get(uid)
	o, ok := c.decisions.waiting[uid]
	if !ok {
		o, ok = c.decisions.lastPlaced(name, uid)
	}

	if !known && !ok || item == nil && !ok {
		return nil
	}
	d := &decision.Decision{
		APIVersion: decision.APIVersion, Kind: decision.Kind, Namespace: name.Namespace, Name: name.Name, UID: uid, Result: decision.None,
	}
	if ok {
		o.fillDecision(d)
	}

	if item != nil {
		d.Queue = c.decisions.placeInQueue(item)
		d.Held = c.reserved.heldFrom(item)
	}

	if p := c.cluster.Nominated(uid); p != nil {
		d.NominatedNode = p.Nominated
	}
	if g := c.groups.GroupOf(uid); g != nil {
		d.Group = c.podGroups.describeGroup(g)
	}
	return d
}

// Incomplete returns the reason why a group gates its pending pod: a missing PodGroup, too few pods
// in a gang, or too few groups in a tree of composite groups. It returns "" if the group does not
// gate the pod.
func (c *Core) Incomplete(uid types.UID) string {
	item := c.queue.Get(uid)
	if item == nil {
		return ""
	}
	g := c.groupOf(item)
	if g == nil || !c.podGroups.progress.isIncomplete(g) {
		return ""
	}
	if g.Object == nil {
		return fmt.Sprintf("there is no PodGroup %q", g.Name.Name)
	}
	if g.Parent() != nil {
		return c.podGroups.describeIncompleteTree(g)
	}
	return fmt.Sprintf("of the %d pods that PodGroup %q asks for at once there %s", g.MinCount(), g.Name.Name, areThere(g.Count()))
}

// areThere completes the phrase "there ..." with a verb and a number.
func areThere(count int) string {
	if count == 1 {
		return "is 1"
	}
	return fmt.Sprintf("are %d", count)
}

// describeGroup describes the state of a group.
func (gs *podGroups) describeGroup(g *groups.Group) *decision.Group {
	d := &decision.Group{
		Name: g.Name.Name, Missing: g.Object == nil, MinCount: g.MinCount(), Members: g.Count(), Scheduled: gs.progress.isStarted(g),
	}
	d.Placed, d.Bound = gs.progress.countPlaced(g), gs.progress.countBound(g)
	if d.Scheduled {
		return d
	}
	if condition := g.Condition(); condition != nil {
		d.Message = condition.Message
	}
	if g.Last.Tried > 0 {
		d.Tried, d.Fit, d.Needed, d.Message = g.Last.Tried, g.Last.Fit, g.Last.Needed, g.Last.Message
	}
	return d
}
