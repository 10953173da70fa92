// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/quantity"
)

// New returns a core with an empty cluster model.
func New(o Options) (*Core, error) {
	c := assembleCore(newCommon(o))
	c.queue.Admit, c.queue.Admitted, c.queue.Moved = c.profiles.firstRejection, c.nominations.podAdmitted, c.nominations.podMoved
	if err := c.replaceProfiles(o.Profiles); err != nil {
		return nil, err
	}
	c.actions = nil
	return c, nil
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
	c.decisions = newDecisions(s)
	c.claims = &sharedClaims{common: s, byName: map[cluster.Name]*sharedClaim{}, releasing: map[cluster.Name]types.UID{}}

	c.placements = newPlacements(s, c.events, c.nominations, c.claims)
	c.podGroups = &podGroups{
		common: s, ready: c.ready, placements: c.placements, gates: gates,
		progress: groupProgress{common: s, placements: c.placements},
		held:     heldMembers{held: map[*groups.Group]map[types.UID]string{}},
	}
	if gates.Composite {
		s.queue.EntityOf = c.podGroups.entityOf
	}
	c.podGroups.units = gang.Units{Cluster: s.cluster, Groups: s.groups}
	c.reserved = &reservations{common: s, nominations: c.nominations, podGroups: c.podGroups}
	c.preemptions = newPreemptions(s, c.events, c.nominations, c.placements, c.podGroups)
	c.nominations.keepsOut = c.podGroups.keepsOut
	c.profiles = &profiles{common: s, events: c.events, podGroups: c.podGroups, preemptions: c.preemptions}
	c.reconstruction = &reconstruction{common: s, ready: c.ready, coming: map[types.UID]struct{}{}, foreseen: map[types.UID]*v1.Pod{},
		rejected: map[types.UID]struct{}{}, generations: map[types.UID]int64{}}

	c.attempts = &attempts{
		common: s, events: c.events, nominations: c.nominations, moveReservations: c.moveReservations, decisions: c.decisions,
		placements: c.placements, podGroups: c.podGroups,
		reserved: c.reserved, preemptions: c.preemptions, profiles: c.profiles, reconstruction: c.reconstruction, preparing: map[string]int{},
		limits: gang.Limits{
			Search: cmp.Or(s.options.SearchLimit, DefaultSearchLimit), Work: max(gang.DefaultWorkLimit, s.options.SearchLimit),
			Unhurried: s.options.Unhurried,
		},
	}

	c.placements.listener = c.attempts
	c.intake = &intake{
		common: s, events: c.events, nominations: c.nominations, decisions: c.decisions, placements: c.placements, podGroups: c.podGroups,
		preemptions: c.preemptions, profiles: c.profiles, attempts: c.attempts,
		unserved: map[types.UID]unservedPod{},
	}

	c.mirrors = c.newMirrors()
	return c
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

// Step processes an event and returns the resulting actions. now must not be before the time of the
// previous step. The next step reuses the returned slice, so the caller must carry out or copy the
// actions before calling Step again. A step decides at most one pod or one pod group: a Tick takes
// the next pod from the queue, and an Answered may continue an attempt suspended by an asynchronous
// question.
func (c *Core) Step(now time.Time, e Event) []Action {
	c.beginStep(now)
	c.decisions.clearStep()
	// A shadow processes watch events with a delay; see reconstruction.
	if c.options.Shadow {
		c.reconstruction.delayEvent(e, c.applyEvent)
	} else {
		c.applyEvent(e)
	}
	// Gates depend on the state of whole groups, which any of the calls above may have changed.
	c.podGroups.regateHeld()
	return c.actions
}

// applyEvent dispatches an event to its component.
func (c *Core) applyEvent(e Event) {
	switch e := e.(type) {
	case Follows:
		c.ready.followKinds(e.Kinds)

	// Objects from lists and watches.
	case Listing:
		c.mirrors[e.Kind].beginList()
	case Listed:
		c.mirrors[e.Kind].endList()
		delete(c.ready.unlisted, e.Kind)
	case Seen:
		c.mirrors[e.Kind].applySeen(quantity.BoundAll(e.Object))
	case Gone:
		c.mirrors[e.Kind].applyGone(quantity.BoundAll(e.Object))
	case Read:
		c.intake.readPod(quantity.BoundAll(e.Pod))

	// The role and the configuration of this scheduler.
	case Led:
		c.ready.leads = true
	case WallSet:
		c.ahead = e.Ahead
	case Configured:
		// The error is ignored: invalid profiles have no effect, and Check has already reported the
		// reason to the caller.
		_ = c.replaceProfiles(e.Profiles)
	case Resumed:
		c.resume(e)

	// Out-of-tree plugins, and the API server's responses to actions.
	case Activate:
		for _, uid := range e.Pods {
			c.queue.Activate(uid, c.now)
		}
	case Happened:
		c.queue.Happened(e.Event, c.now)
	case PermitAllowed:
		c.placements.permitAllowed(e)
	case PermitRejected:
		c.placements.permitRejected(e)
	case ClaimMade:
		c.claims.replacePlaceholder(e)

	case Answered:
		c.routeAnswer(e)
	case Tick:
		c.applyTick()
	}
}

// applyTick ends expired waits, wakes pods that recent events may help, and decides one pod or pod
// group.
//
// The order matters. Expired waits and reservations end first, because the release of their room is
// an event that may wake pods. Then the recorded events are passed to the queue, so that the same
// tick can pop a pod woken by them. A core that does not lead takes the same steps, but decides no
// pods. So its queue is up to date when it takes over.
func (c *Core) applyTick() {
	if c.now.Sub(c.flushed) >= flushEvery {
		c.flushed = c.now
		c.queue.Flush(c.now)
		c.events.objects = true
		c.dropUnused()
	}

	c.placements.timeOut()
	c.nominations.clearGated()
	c.moveReservations.lapse()
	c.reserved.lapse()
	c.preemptions.wakeDelayed()
	c.preemptions.settle()
	c.preemptions.forgetCounted()
	c.events.flushEvents()
	if !c.ready.mayDecide() {
		return
	}

	if !c.ready.begun {
		c.ready.begun = true
		c.addAction(Ready{})
		// Before the core began to decide, it wrote no conditions of groups.
		c.podGroups.updateAllScheduled()
	}

	switch item := c.queue.Pop(c.now); {
	case item == nil:
	// The popped pod represents its group; the other members are taken from their places in the
	// queue.
	case c.groupOf(item) != nil:
		c.attempts.scheduleGroup(c.groupOf(item), item)
	default:
		c.attempts.startAttempt(item)
	}
}

// dropUnused drops the cached state of large, possibly deleted pods.
func (c *Core) dropUnused() {
	c.cluster.DropUnused()
	for _, p := range c.profiles.byName {
		p.Decider.DropUnused()
		if p.failed.class != nil && p.failed.class.Bulk > 0 {
			p.failed = failure{}
		}
	}
}
