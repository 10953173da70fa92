// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Core is the scheduling cycle of a set of profiles. It has one owner: its methods must not be
// called concurrently.
//
// It consists of parts, in the order of the fields. A part uses only the parts listed before it;
// the end of a placement is reported through the interface placementListener. Each part's type
// documents its own invariants. The following invariants hold for the whole core. A pod to be
// scheduled is an item of the queue until a watch shows it bound or deleted, and its place in the
// queue is queue.Taken during an attempt. Every placement, outstanding action and wait has an event
// or a deadline that ends it. No decision is made before all kinds are listed and this scheduler
// leads.
type Core struct {
	*common
	ready            *readiness
	events           *clusterEvents
	nominations      *nominations
	moveReservations *moveReservations
	decisions        *decisions
	claims           *sharedClaims
	placements       *placements
	podGroups        *podGroups
	reserved         *reservations
	preemptions      *preemptions
	profiles         *profiles
	reconstruction   *reconstruction
	attempts         *attempts
	intake           *intake
	mirrors          map[Kind]mirror
	flushed          time.Time // time of the last scan for pods stuck in the unschedulable queue
}

// Check reports whether the profiles are valid. Configured ignores invalid profiles. Check compiles
// the profiles like Configured, and discards the result.
func (c *Core) Check(list []Profile) error {
	_, err := c.profiles.compileProfiles(list)
	return err
}

// flushEvery is the interval between scans for pods stuck in the unschedulable queue. It can
// lengthen a wait of queue.MaxWait (five minutes) by half a minute, but a shorter interval would
// scan all pending pods more often. Upstream uses the same interval.
const flushEvery = 30 * time.Second

// Wake returns the time at which the core needs a Tick if no event arrives. If work is pending, it
// returns now. The returned time is never later than the next flush, so a caller sleeping until
// then needs no additional timer.
func (c *Core) Wake(now time.Time) time.Time {
	if len(c.events.events) > 0 || c.events.objects || c.ready.mayDecide() && !c.ready.begun {
		return now
	}
	next := c.flushed.Add(flushEvery)
	if at, ok := c.Due(); ok && at.Before(next) {
		return at
	}
	return next
}

// Due returns the end of the next timed wait. A timed wait is a back-off, a wait at Permit, a wait
// for objects, a reservation, a wait before a preemption, or a wait for a budget to count a deleted
// victim. If ok is false, no timed wait is pending, and a Tick only scans for pods stuck in the
// unschedulable queue.
func (c *Core) Due() (next time.Time, ok bool) {
	// The deadlines share no common heap: there are few of them, and each component keeps its own.
	sooner := func(at time.Time) {
		if !ok || at.Before(next) {
			next, ok = at, true
		}
	}

	if at, ready := c.queue.NextReady(); ready && c.ready.mayDecide() {
		sooner(at)
	}
	for _, b := range c.placements.held {
		sooner(b.permit.nextTimeout())
	}

	if at := c.placements.conditions.nextDeadline(); !at.IsZero() {
		sooner(at)
	}
	if at, waits := c.reconstruction.nextDue(); waits {
		sooner(at)
	}

	if c.reserved.held != nil {
		sooner(c.reserved.nextDue())
	}
	if kept := c.moveReservations.kept; kept != nil && !kept.over {
		sooner(kept.until)
	}

	if alarms := c.preemptions.alarms; len(alarms) > 0 {
		sooner(alarms[0].until)
	}
	if settling := c.preemptions.settling; len(settling) > 0 {
		sooner(settling[0].until)
	}
	if at := c.preemptions.recount; !at.IsZero() {
		sooner(at)
	}
	return next, ok
}

// Synced reports whether every followed kind has been listed.
func (c *Core) Synced() bool { return c.ready.hasSynced() }

// View is the state used by the core's decisions. It may only be read between steps.
type View struct {
	Cluster  *cluster.Cluster
	Queue    *queue.Queue
	Profiles map[string]Profile
	Groups   *groups.Set  // nil if pod groups are off
	Reserved *Reservation // current reservation, or nil
}

// View returns the core's state. The maps of the View are copies. Their values, and the pointers,
// refer to the core's own state, which the next step changes.
func (c *Core) View() View {
	v := View{Cluster: c.cluster, Queue: c.queue, Profiles: map[string]Profile{}, Reserved: c.reserved.held}
	if c.podGroups.gates.Generic {
		v.Groups = c.groups
	}
	for name, p := range c.profiles.byName {
		v.Profiles[name] = p.Profile
	}
	return v
}

// Sizes counts the core's objects.
func (c *Core) Sizes() Sizes {
	return Sizes{
		Active: c.queue.Len(queue.Active), Backoff: c.queue.Len(queue.Backoff), Unschedulable: c.queue.Len(queue.Waiting),
		Gated: c.queue.Len(queue.Gated), Entities: c.queue.Entities(),
		Nodes: c.cluster.Len(), Pods: c.cluster.Pods(), Assumed: c.placements.countUnderWay(),
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

// Decider returns the decider of a scheduler name, for queries on the state used by the core's
// decisions. It is nil if no profile serves the name.
func (c *Core) Decider(schedulerName string) *decide.Decider {
	if p := c.profiles.byName[schedulerName]; p != nil {
		return p.Decider
	}
	return nil
}

// Decision returns the last decision about a pod, or nil if no decision is recorded.
func (c *Core) Decision(name cluster.Name) *decision.Decision {
	uid, known := c.intake.named(name)
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

// Sizes counts the objects of a core, for metrics; see [Core.Sizes].
type Sizes struct {
	Active, Backoff, Unschedulable, Gated int // number of pods by place
	Nodes, Pods, Assumed                  int // number of objects in the cluster model
	// Entities counts pod groups and ungrouped pods in the queue.
	Entities queue.EntityCounts
}
