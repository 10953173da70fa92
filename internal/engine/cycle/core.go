// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
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
	attempts         *attempts
	intake           *intake
	mirrors          map[Kind]mirror
	flushed          time.Time // time of the last scan for pods stuck in the unschedulable queue
}

// New returns a core with an empty cluster model.
func New(o Options) (*Core, error) {
	c := assembleCore(newCommon(o))
	c.queue.Admit, c.queue.Admitted, c.queue.Moved = c.profiles.firstRejection, c.nominations.podAdmitted, c.nominations.podMoved
	if err := c.replaceProfiles(o.Profiles); err != nil {
		return nil, err
	}
	c.actions = nil
	if o.Shadow != nil {
		c.shadow = o.Shadow(c)
	}
	return c, nil
}

// newCommon creates the queue, the cluster model and the set of groups, all empty. Missing options
// get default values: a NoObserver, no objects, and a stopped stopwatch, so that all durations are
// 0.
func newCommon(o Options) *common {
	q := queue.New()
	if o.Observer == nil {
		o.Observer = NoObserver{}
	} else {
		q.Asked, q.EntityMoved = o.Observer.Hinted, o.Observer.EntityQueued
	}

	o.Objects = cmp.Or[Objects](o.Objects, NoObjects{})
	if o.Stopwatch == nil {
		o.Stopwatch = func() time.Time { return time.Time{} }
	}
	q.FirstBackoff = cmp.Or(o.FirstBackoff, q.FirstBackoff)
	q.LastBackoff = cmp.Or(o.LastBackoff, q.LastBackoff)
	q.MaxWait = cmp.Or(o.MaxWait, q.MaxWait)
	q.WaitOutBackoff = o.Disabled.PopFromBackoff
	q.Counted = o.Observer.Rejected
	q.Grouped = o.Groups.Generic

	c, set := cluster.New(), groups.New()
	set.Nested = o.Groups.Composite
	return &common{
		options: o, rng: rand.New(rand.NewPCG(o.Seed, 1)), cluster: c, queue: q, groups: set,
		handlers: map[Ticket]handler{},
	}
}

// assembleCore creates the parts of a core, in their order. Each part receives the earlier parts
// that it uses. An earlier part calls a later part only through a function or an interface that is
// set afterwards: nominations.keepsOut, placements.listener, and the hooks of the queue.
func assembleCore(s *common) *Core {
	c := &Core{common: s}
	gates := s.options.Groups
	c.ready = &readiness{unlisted: map[Kind]bool{}}
	c.events = &clusterEvents{common: s}
	c.nominations = &nominations{common: s, ready: c.ready, events: c.events, ofGroups: gates.Generic, lent: map[types.UID]bool{}}
	c.moveReservations = &moveReservations{common: s, nominations: c.nominations}
	c.decisions = &decisions{common: s, waiting: map[types.UID]pendingOutcome{}}
	c.claims = &sharedClaims{common: s, byName: map[cluster.Name]*sharedClaim{}, releasing: map[cluster.Name]*types.UID{}}

	c.placements = &placements{
		common: s, events: c.events, nominations: c.nominations, claims: c.claims,
		byPod: map[types.UID]*placement{}, held: map[Ticket]*placement{},
	}
	c.podGroups = &podGroups{
		common: s, ready: c.ready, placements: c.placements, gates: gates,
		progress: groupProgress{common: s, placements: c.placements},
		held:     heldMembers{held: map[*groups.Group]map[types.UID]string{}},
	}
	if gates.Composite {
		s.queue.EntityOf = c.podGroups.entityOf
	}
	c.podGroups.units = gang.Units{Cluster: s.cluster, Groups: s.groups}
	c.reserved = &reservations{common: s, nominations: c.nominations, podGroups: c.podGroups, lives: map[types.UID]lifetime{}}
	c.preemptions = &preemptions{
		common: s, events: c.events, nominations: c.nominations, placements: c.placements, podGroups: c.podGroups,
		rounds: map[types.UID]*round{}, leaving: map[types.UID]bool{}, binding: map[*placement]*removal{}, budgets: usedBudgets{},
		leavers: map[types.UID]bool{},
	}
	c.nominations.keepsOut = c.podGroups.keepsOut
	c.profiles = &profiles{common: s, events: c.events, podGroups: c.podGroups, preemptions: c.preemptions}

	c.attempts = &attempts{
		common: s, events: c.events, nominations: c.nominations, decisions: c.decisions,
		placements: c.placements, podGroups: c.podGroups,
		reserved: c.reserved, preemptions: c.preemptions, profiles: c.profiles, preparing: map[string]int{},
		limits: gang.Limits{
			Search: cmp.Or(s.options.SearchLimit, DefaultSearchLimit), Work: max(gang.DefaultWorkLimit, s.options.SearchLimit),
			Unhurried: s.options.Unhurried,
		},
	}

	c.placements.listener = c.attempts
	c.intake = &intake{
		common: s, events: c.events, nominations: c.nominations, decisions: c.decisions, placements: c.placements, podGroups: c.podGroups,
		preemptions: c.preemptions, profiles: c.profiles, attempts: c.attempts, reserved: c.reserved,
		unserved: map[types.UID]unservedPod{},
	}

	s.cluster.IsPending = func(uid types.UID) bool {
		_, unserved := c.intake.unserved[uid]
		return unserved || s.queue.Get(uid) != nil
	}
	c.mirrors = c.newMirrors()
	return c
}

// newMirrors creates the mirrors of all kinds. The listing order of kinds does not matter: all are
// listed before any decision.
func (c *Core) newMirrors() map[Kind]mirror {
	s, h, o := c.common, c.events, &c.cluster.Objects
	pods := newMirror(s, h, queue.Pod, podKind{c.intake})
	pods.single = func(pod *v1.Pod) *v1.Pod { own := *pod; return &own } // the class may keep a reference to its spec
	all := map[Kind]mirror{
		Nodes: newMirror(s, h, queue.Node, nodeKind{c.intake}),
		Pods:  pods,

		Namespaces:             mirrorTable(h, &o.Namespaces, queue.Namespace),
		Services:               mirrorTable(h, &o.Services, queue.Owner),
		ReplicationControllers: mirrorTable(h, &o.ReplicationControllers, queue.Owner),
		ReplicaSets:            mirrorTable(h, &o.ReplicaSets, queue.Owner),
		StatefulSets:           mirrorTable(h, &o.StatefulSets, queue.Owner),
		Volumes:                mirrorTable(h, &o.Volumes, queue.Volume),
		StorageClasses:         mirrorTable(h, &o.StorageClasses, queue.StorageClass),
		CSINodes:               mirrorTable(h, &o.CSINodes, queue.CSINode),
		CSIDrivers:             mirrorTable(h, &o.CSIDrivers, queue.CSIDriver),
		CSICapacities:          mirrorTable(h, &o.CSICapacities, queue.CSIStorageCapacity),
		VolumeAttachments:      mirrorTable(h, &o.VolumeAttachments, queue.VolumeAttachment),
		DeviceClasses:          mirrorTable(h, &o.DeviceClasses, queue.DeviceClass),

		DisruptionBudgets: mirrorAs(h, &o.Budgets, queue.Budget, c.preemptions.budgetSeen, c.preemptions.budgetGone),
		Claims:            mirrorAs(h, &o.Claims, queue.Claim, h.parseSelector, nil),
		ResourceSlices: mirrorAs(h, &o.ResourceSlices, queue.ResourceSlice, o.Tainted,
			func(n cluster.Name) { o.Unpublish(n.Name) }),
		ResourceClaims: mirrorAs(h, &o.ResourceClaims, queue.ResourceClaim, c.claims.mergeSeen, c.claims.forgetGone),

		DeviceTaintRules: newMirror(s, h, "DeviceTaintRule", taintRuleKind{h}),
		PriorityClasses:  newMirror(s, h, "PriorityClass", priorityClassKind{&o.PriorityClasses}),
		MoveLeases:       newMirror(s, h, "Lease", moveLeaseKind{c.moveReservations}),
	}
	if c.podGroups.gates.Generic {
		all[PodGroups] = newMirror(s, h, queue.PodGroup, podGroupKind{c.podGroups, h})
	}
	if c.podGroups.gates.Composite {
		all[CompositePodGroups] = newMirror(s, h, queue.CompositePodGroup, compositeKind{c.podGroups})
	}
	return all
}

// Check reports whether the profiles are valid. Configured ignores invalid profiles. Check compiles
// the profiles like Configured, and discards the result.
func (c *Core) Check(list []Profile) error {
	_, err := c.profiles.compileProfiles(list)
	return err
}

// replaceProfiles replaces the profiles between two attempts. The cluster model, nominations and
// pending bindings are kept. Pending pods are retried with the new configuration; pods of scheduler
// names no longer served leave the queue, and pods of newly served names enter it.
func (c *Core) replaceProfiles(list []Profile) error {
	f, err := c.profiles.compileProfiles(list)
	if err != nil {
		return err
	}
	c.intake.keepWhole(f.whole)
	c.profiles.useConfiguration(f)
	if !c.events.outOfTree {
		for _, m := range c.mirrors {
			m.forgetStates()
		}
	}
	c.intake.dismissUnserved()
	c.intake.fetchServed()
	return nil
}

// dismissUnserved removes pods with an unserved scheduler name from the queue, and retries the
// remaining pods.
func (i *intake) dismissUnserved() {
	for _, item := range i.queue.Sorted() {
		pod := item.Pod
		if i.profiles.servesName(pod.Spec.SchedulerName) {
			i.queue.Wake(pod.UID, queue.ForceActivate, i.now)
			continue
		}
		name := unservedPod{nameOf(pod), pod.Spec.SchedulerName}
		i.dropPending(pod.UID)
		if item.Resizes() {
			continue
		}
		i.unserved[pod.UID] = name
		i.unserved = cluster.Shrunk(i.unserved, &i.mostUnserved)
	}
}

// fetchServed fetches the pending pods of newly served scheduler names, in a fixed order. Each pod
// enters the queue when its Read arrives.
func (i *intake) fetchServed() {
	for _, uid := range slices.Sorted(maps.Keys(i.unserved)) {
		if pod := i.unserved[uid]; i.profiles.servesName(pod.scheduler) {
			i.addAction(ReadPod{pod.Name})
		}
	}
}

// keepWhole sets whether whole pod objects are kept from now on. Pods already pending are fetched
// again from Options.Objects.
func (i *intake) keepWhole(whole bool) {
	if whole && !i.trimmer.whole {
		for item := range i.queue.Each {
			if pod := i.options.Objects.Shown(item.Pod.UID); pod != nil { // otherwise the pod stays trimmed
				item.Pod = pod
			}
		}
	}
	i.trimmer.whole = whole
}

// Synced reports whether every followed kind has been listed.
func (c *Core) Synced() bool { return c.ready.hasSynced() }
