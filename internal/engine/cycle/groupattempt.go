// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file holds the state of one attempt for a group: its members, and the request for package
// gang. decidegroup.go decides the attempt, and groupoutcome.go carries out the decision.

// groupAttempt turns package gang's decisions about a group into actions: placements, preemptions,
// reservations, conditions. The members that gang counts on nodes have reservations (see
// groupHost.Reserve), but are not reported or written until startPlacements is called.
type groupAttempt struct {
	*attempts
	attempt *gang.Attempt
	group   *groups.Group
	profile *servedProfile
	members []*member // in decision order; see compareMembers
	byAsked map[*gang.Member]*member

	// suspended holds the members' nominations that are withdrawn while the group is decided. These
	// nominations are part of the reservation for the group.
	suspended []*cluster.Pod
	trial     bool          // the attempt is discarded; see preview
	evaluated time.Time     // start of the current evaluation of a placement
	shown     *GroupAttempt // the attempt shown to out-of-tree plugins; nil without such plugins, and after they saw it end
	rejectors []string      // rejectors of all members; see noteRejectors
	unhelped  string        // message for fitting members about plugins that did not help the group
	tree      *treeAttempt  // attempt for the group's tree; nil if the group is in no tree

	// After the decision: members with and without a node, the waits of the members that plugins
	// allowed at Permit, and the reason for giving the group up because of refused members, if any.
	placed, left []*member
	through      map[*member]permitWaits
	refused      error
}

// member is a pod of a group being decided: the cycle uses its placement, and package gang uses the
// field asked.
type member struct {
	*placement
	asked  *gang.Member
	claims string // message about the release of its device claims, if any
}

// newGroup returns an attempt for pending members, given in decision order.
func (s *attempts) newGroup(g *groups.Group, items []*queue.Item, of *treeAttempt) *groupAttempt {
	first := items[0].Pod.Spec.SchedulerName
	a := &groupAttempt{
		attempts: s, group: g, profile: s.profiles.byName[first], tree: of,
		members: make([]*member, 0, len(items)), byAsked: make(map[*gang.Member]*member, len(items)),
	}
	members, asked := make([]member, len(items)), make([]gang.Member, len(items))
	for i, item := range items {
		p := s.profiles.byName[item.Pod.Spec.SchedulerName]
		m := &members[i]
		m.placement, m.asked = &s.newAttempt(p, item).placement, &asked[i]
		m.sibling = true
		item.Together = len(items)
		asked[i] = gang.Member{
			Form:    gang.Form{Pod: item.Pod, Asked: s.nominations.asContender(m.Waiting, item.Pod)},
			Waiting: m.Waiting, Delayed: s.preemptions.mustDelay(item),
		}
		a.members, a.byAsked[m.asked] = append(a.members, m), m
	}

	a.attempt = gang.New(a.newRequest())
	return a
}

// newRequest returns gang's request for the members.
func (a *groupAttempt) newRequest() *gang.Request {
	members := make([]*gang.Member, len(a.members))
	for i, m := range a.members {
		members[i] = m.asked
	}

	r := &gang.Request{
		Cluster: a.cluster, Units: a.podGroups.units, Profile: a.profile.Profile.Profile, Decider: a.profile.Decider,
		Host: groupHost{a}, Rand: a.rng, Limits: a.limits,
		Group: a.group, Members: members, Need: a.podGroups.progress.countMissing(a.group),
		Earlier: gang.Memory{Shortened: a.group.Shortened, Reached: a.group.Reached},
	}
	if a.podGroups.gates.Topology {
		r.TopologyKey = a.group.TopologyKey()
	}
	r.PlacedBefore, _ = a.podGroups.progress.countPlaced(a.group)
	if a.tree != nil {
		a.tree.limit(r)
	}
	return r
}

// takeOff removes members without a started placement from their nodes.
func (a *groupAttempt) takeOff() {
	for _, m := range a.members {
		if a.placements.byPod[m.Pod.UID] != m.placement {
			a.cluster.RemovePod(m.Pod.UID)
		}
	}
}

// endAfterPanic requeues the members not binding yet.
func (a *groupAttempt) endAfterPanic(value any) {
	fault := &Fault{Message: fmt.Sprintf("internal error while the pod group was decided: %v", value)}
	for _, m := range a.members {
		switch {
		case a.placements.byPod[m.Pod.UID] == m.placement && m.stage == reserving:
			a.placements.takeBack(m.placement, fault)
		case a.placements.byPod[m.Pod.UID] == nil && m.item.Place() == queue.Taken:
			a.placements.giveBack(m.placement)
			m.endAttempt(false)
			a.requeueFailed(m.podAttempt, fault)
		}
	}
}

// nodesByPod returns the names of the nodes of places.
func nodesByPod(places []gang.Place) map[types.UID]string {
	nodes := make(map[types.UID]string, len(places))
	for _, p := range places {
		nodes[p.Pod.UID] = p.Decision.Node.Name
	}
	return nodes
}
