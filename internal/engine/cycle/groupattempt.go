// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
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
	r.PlacedBefore = a.podGroups.progress.countPlaced(a.group)
	if a.tree != nil {
		a.tree.limit(r)
	}
	return r
}

// beginGroup notifies out-of-tree plugins that the attempt begins.
func (a *groupAttempt) beginGroup() {
	if len(a.profile.Extensions) == 0 {
		return
	}
	a.shown = &GroupAttempt{Group: a.group.Object, Cluster: a.cluster, Schedule: a.scheduleForPlugin}
	for _, m := range a.members {
		for _, e := range a.profile.begin {
			e.Begin(&m.Attempt)
		}
		a.shown.Members = append(a.shown.Members, &m.Attempt)
	}
	for _, e := range a.profile.beginGroup {
		e.BeginGroup(a.shown)
	}
}

// endGroup notifies out-of-tree plugins that the attempt is over. A second call does nothing.
func (a *groupAttempt) endGroup() {
	if a.shown == nil {
		return
	}
	for _, e := range a.profile.beginGroup {
		e.EndGroup(a.shown)
	}
	a.shown = nil
}

// scheduleForPlugin decides the members in the current state of the cluster, which includes a
// plugin's changes.
func (a *groupAttempt) scheduleForPlugin() (p GroupPlacement) {
	a.attempt.Look(func() {
		switch p.Err = a.attempt.Place(); {
		case p.Err != nil:
		case a.attempt.HasEnough():
			p = a.describePlacement(a.attempt.CurrentPlacement())
		default:
			p.Message = a.attempt.Verdict().Reason()
		}
	})
	return p
}

// describePlacement converts a placement for out-of-tree plugins.
func (a *groupAttempt) describePlacement(from gang.Placement) GroupPlacement {
	places := rules.Mapped(from.Places, func(p gang.Place) GroupPlace { return GroupPlace{&a.byAsked[p.Member].Attempt, p.Decision.Node} })
	return GroupPlacement{Domain: from.Domain, Nodes: from.Nodes, Places: places}
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

// groupHost is gang's view of the cycle.
type groupHost struct{ *groupAttempt }

// ScorePlacements returns the weighted sums of the out-of-tree plugins' scores.
func (h groupHost) ScorePlacements(list []gang.Placement) ([]float64, error) {
	placements := make([]GroupPlacement, len(list))
	for i := range list {
		placements[i] = h.describePlacement(list[i])
	}

	sums := make([]float64, len(list))
	for _, by := range h.profile.scorePlacements {
		scores, err := by.ScorePlacements(h.shown, placements)
		if err != nil {
			return nil, fmt.Errorf("running PlacementScore plugin %q: %w", by.Name(), err)
		}
		weight := max(1, h.profile.Weights[by.Name()])
		for i := range sums {
			sums[i] += float64(weight * scores[i])
		}
	}
	return sums, nil
}

// Reserve runs the Reserve step, including out-of-tree plugins, so that the plugins' filters
// account for the reservations of earlier members.
func (h groupHost) Reserve(m *gang.Member, n *cluster.Node) error {
	b := h.byAsked[m].placement
	b.Node = n.Name
	if err := h.placements.reserveOwn(b, n); err != nil {
		return err
	}
	return h.placements.reserveOutside(b)
}

// Release releases a member's reservations.
func (h groupHost) Release(m *gang.Member) {
	b := h.byAsked[m].placement
	h.placements.giveBack(b)
	b.own, b.volumes, b.devices = nil, plugins.PodVolumes{}, deviceWork{}
	b.Node = ""
}

// DevicesOf lists the devices allocated by Reserve.
func (h groupHost) DevicesOf(m *gang.Member) (list []resourcev1.DeviceRequestAllocationResult) {
	for _, r := range h.byAsked[m].devices.Claims {
		if r.Allocated {
			list = append(list, r.Claim.Status.Allocation.Devices.Results...)
		}
	}
	return list
}

// Contender returns the form of a pod that competes with other pods for room; see
// nominations.asContender.
func (h groupHost) Contender(p *cluster.Pod, pod *v1.Pod) *cluster.Pod {
	return h.nominations.asContender(p, pod)
}

// BeginPlacement notifies out-of-tree plugins that members are decided again.
func (h groupHost) BeginPlacement(domain string) {
	for _, e := range h.profile.beginGroup {
		if h.shown != nil {
			e.BeginPlacement(h.shown, domain)
		}
	}
}

// GeneratedPlacements reports the number of possible placements of the group, if topology
// constraints are enabled.
func (h groupHost) GeneratedPlacements(count int) {
	if h.podGroups.gates.Topology && !h.trial {
		h.observer().GeneratedPlacements(h.members[0].Profile, count)
		h.evaluated = h.clock()
	}
}

// EvaluatedPlacements reports the number of placements evaluated since the last report.
func (h groupHost) EvaluatedPlacements(count int, feasible bool) {
	if count == 0 || !h.podGroups.gates.Topology || h.trial {
		return
	}
	now := h.clock()
	took := now.Sub(h.evaluated) / time.Duration(count)
	h.observer().EvaluatedPlacements(h.members[0].Profile, feasible, count, took)
	h.evaluated = now
}

// ScoresPlacements reports whether any out-of-tree plugin is enabled at PlacementScore.
func (h groupHost) ScoresPlacements() bool {
	return h.shown != nil && len(h.profile.scorePlacements) > 0
}

// Leaving lists the preempted pods still terminating on known nodes.
func (h groupHost) Leaving() []*cluster.Pod { return h.preemptions.onTheirWay() }
