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
// called from two goroutines at once.
//
// It consists of parts, in the order of the fields. A part uses the parts before it and calls none
// after it; how a placement ends is reported through the interface aftermath. The invariants of a
// part stand at its type. Those of the whole: a pod to be scheduled is an item of the queue until a
// watch shows it bound or gone, and its place there is queue.Taken while an attempt is under way.
// Every placement, unanswered action and wait has an event or a deadline that ends it. Nothing is
// decided before all kinds are listed and this scheduler leads.
type Core struct {
	*common
	ready       *readiness
	news        *happenings
	nominations *nominations
	rooms       *rooms
	decisions   *decisions
	claims      *sharedClaims
	placements  *placements
	podGroups   *podGroups
	reserved    *reservations
	preemptions *preemptions
	profiles    *profiles
	hindsight   *hindsight
	attempts    *attempts
	intake      *intake
	mirrors     map[Kind]mirror
	flushed     time.Time // when the queue was last searched for pods that have waited too long
}

// Check tells whether the profiles are valid. Configured ignores profiles that are not. It compiles
// them as Configured would, and throws the result away.
func (c *Core) Check(list []Profile) error {
	_, err := c.profiles.compileProfiles(list)
	return err
}

// flushEvery is how often the queue is searched for pods that have waited too long. A wait of up to
// queue.MaxWait (five minutes) can thus take half a minute longer, which saves going through all
// pending pods more often. The same interval is used upstream.
const flushEvery = 30 * time.Second

// Wake returns when the core needs a Tick if nothing else happens; now, if there is work to do. It
// is never later than the next flush, so a caller that sleeps until then needs no timer of its own.
func (c *Core) Wake(now time.Time) time.Time {
	if len(c.news.events) > 0 || c.news.objects || c.ready.mayDecide() && !c.ready.begun {
		return now
	}
	next := c.flushed.Add(flushEvery)
	if at, ok := c.Due(); ok && at.Before(next) {
		return at
	}
	return next
}

// Due returns when the next timed wait ends: a back-off, a wait at Permit, one for objects, one
// before a preemption, or that for a budget to count a victim that is gone. If ok is false there is
// none, and a Tick only searches for pods that have waited too long.
func (c *Core) Due() (next time.Time, ok bool) {
	// The deadlines have no common heap: each component keeps its own, and there are few of them.
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
	if at, waits := c.hindsight.nextDue(); waits {
		sooner(at)
	}

	if c.reserved.held != nil {
		sooner(c.reserved.nextDue())
	}
	if kept := c.rooms.kept; kept != nil && !kept.over {
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

// Synced tells whether every followed kind has been listed.
func (c *Core) Synced() bool { return c.ready.hasSynced() }

// View is the state that the core decides on. It may be read between two steps.
type View struct {
	Cluster  *cluster.Cluster
	Queue    *queue.Queue
	Profiles map[string]Profile
	Groups   *groups.Set  // nil if pod groups are off
	Reserved *Reservation // the current one, or nil
}

// View returns the core's state. Maps of the View are new; what they and the pointers refer to is
// the core's own, and is changed by the next step.
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

// Sizes counts what the core keeps.
func (c *Core) Sizes() Sizes {
	return Sizes{
		Active: c.queue.Len(queue.Active), Backoff: c.queue.Len(queue.Backoff), Unschedulable: c.queue.Len(queue.Waiting),
		Gated: c.queue.Len(queue.Gated), Entities: c.queue.Entities(),
		Nodes: c.cluster.Len(), Pods: c.cluster.Pods(), Assumed: c.placements.countUnderWay(),
	}
}

// Books lists what is under way. When the cluster is at rest, all of it is empty.
type Books struct {
	Assumed   []types.UID // pods on their way to a node
	Held      []types.UID // those of them that wait at Permit
	Preemptor []types.UID // pods whose victims' removal is not answered yet
	Leaving   []types.UID // victims that no watch has shown terminating
	Yielding  []types.UID // victims whose binding is not over
	Unserved  []types.UID // pending pods of scheduler names without a profile
	Claims    int         // device claims in use or given up of which no watch has shown that
	Awaiting  int         // waits for objects
	Errands   int         // actions not answered yet
	Decisions int         // remembered decisions about pending pods
}

// Books shows what is under way.
func (c *Core) Books() Books {
	b := Books{
		Assumed: slices.Sorted(maps.Keys(c.placements.byPod)), Preemptor: slices.Sorted(maps.Keys(c.preemptions.rounds)),
		Leaving: slices.Sorted(maps.Keys(c.preemptions.leaving)), Unserved: slices.Sorted(maps.Keys(c.intake.unserved)),
		Claims:   len(c.claims.byName) + len(c.claims.releasing),
		Awaiting: len(c.placements.conditions), Errands: len(c.errands), Decisions: len(c.decisions.waiting),
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

// Decided returns the decisions of the last step: one for each pod that it decided or returned to
// the queue, without the pod's place in the queue. Most steps decide one pod or none. The pods of a
// group are decided together, and share the description of the group.
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
		// A pod can be decided and come back in one step, when a reservation or Permit fails: the
		// later outcome counts.
		if last[o.uid] != i {
			continue
		}
		d := &decision.Decision{APIVersion: decision.APIVersion, Kind: decision.Kind, Namespace: o.name.Namespace, Name: o.name.Name}
		o.fillDecision(d)
		if p := c.cluster.Nominated(o.uid); p != nil {
			d.NominatedNode = p.Nominated
		}
		if g := c.groups.Of(o.uid); g != nil {
			if told[g] == nil {
				told[g] = c.podGroups.describeGroup(g)
			}
			d.Group = told[g]
		}
		all = append(all, d)
	}

	return all
}

// Decider returns the decider of a scheduler name, to answer questions on the state that the core
// decides on. It is nil if no profile serves the name.
func (c *Core) Decider(schedulerName string) *decide.Decider {
	if p := c.profiles.byName[schedulerName]; p != nil {
		return p.Decider
	}
	return nil
}

// Decision returns the last decision about a pod, or nil if none is remembered.
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
	if g := c.groups.Of(uid); g != nil {
		d.Group = c.podGroups.describeGroup(g)
	}
	return d
}

// Incomplete returns why its group keeps a pending pod out of the queue: there is no PodGroup, a
// gang has too few pods, or a tree of composite groups has too few groups. It is empty if the group
// does not keep it out.
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

// areThere ends the sentence "there ..." with a number.
func areThere(count int) string {
	if count == 1 {
		return "is 1"
	}
	return fmt.Sprintf("are %d", count)
}

// Sizes are the numbers of objects that a core keeps, for metrics; see [Core.Sizes].
type Sizes struct {
	Active, Backoff, Unschedulable, Gated int // pods in the queue
	Nodes, Pods, Assumed                  int // in the cluster model
	// Entities are pod groups and the pods that are in none, in the queue.
	Entities queue.EntityCounts
}
