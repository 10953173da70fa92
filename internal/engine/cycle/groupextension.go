// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// GroupAttempt is one try to schedule the pending pods of a pod group together, as shown to
// out-of-tree plugins. It is only used on the owner.
type GroupAttempt struct {
	Group   *groups.PodGroup
	Members []*Attempt // in decision order
	Cluster *cluster.Cluster
	// State belongs to the out-of-tree plugins.
	State any
	// Schedule decides the members again in the current cluster, including a plugin's temporary
	// changes. Afterwards no member remains on a node.
	Schedule func() GroupPlacement
}

// GroupPlacement holds the nodes chosen for members of a group.
type GroupPlacement struct {
	// Domain is the value of the topology key shared by all nodes; empty without a topology key.
	Domain string
	Nodes  []*cluster.Node // nodes of the domain, if any
	Places []GroupPlace
	// Message is the reason why too few members fit. It is empty if enough members fit.
	Message string
	Err     error
}

// GroupPlace is a member and its node.
type GroupPlace struct {
	*Attempt
	Node *cluster.Node
}

// GroupBeginner is notified of the course of an attempt for a group. BeginGroup is called at its
// beginning, after Begin was called for the members. BeginPlacement is called before the members
// are decided, with the domain if they are confined to one, and "" otherwise. EndGroup is called
// when the attempt is over, or when the members are about to be bound. It runs on the owner.
type GroupBeginner interface {
	Extension
	BeginGroup(a *GroupAttempt)
	BeginPlacement(a *GroupAttempt, domain string)
	EndGroup(a *GroupAttempt)
}

// GroupPostFilterer is called when a group does not fit (PodGroupPostFilter), in the order of the
// profile, which also lists DynamicResources and DefaultPreemption. It runs on the owner.
type GroupPostFilterer interface {
	Extension
	RunGroupPostFilter(a *GroupAttempt) GroupPostFilterResult
}

// GroupPostFilterResult is the result of a GroupPostFilterer.
type GroupPostFilterResult struct {
	// Helped: the group can be scheduled once the plugin's action has completed. Nodes are then the
	// nominated nodes of the members.
	Helped bool
	Nodes  map[types.UID]string
	// Message is appended to the reason why the group is not scheduled.
	Message string
	// Final: no further plugin is called, because no plugin can help.
	Final bool
	// Err: the plugin failed, and no further plugin is called.
	Err error
}

// PlacementScorer scores the feasible domains of a group (PlacementScore). The scores are in the
// order of the candidates and between 0 and 100. They are multiplied by the plugin's weight. It
// runs on the owner.
type PlacementScorer interface {
	Extension
	ScorePlacements(a *GroupAttempt, candidates []GroupPlacement) ([]int64, error)
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
	p := GroupPlacement{Domain: from.Domain, Nodes: from.Nodes}
	for _, place := range from.Places {
		p.Places = append(p.Places, GroupPlace{&a.byAsked[place.Member].Attempt, place.Decision.Node})
	}
	return p
}

// runOutOfTree runs an out-of-tree plugin at PodGroupPostFilter.
func (a *groupAttempt) runOutOfTree(by GroupPostFilterer) groupPostFilterOutcome {
	r := by.RunGroupPostFilter(a.shown)
	outcome := groupPostFilterOutcome{message: r.Message, final: r.Final || r.Helped, err: r.Err}
	if r.Helped {
		outcome.nodes = map[types.UID]string{}
		for _, m := range a.members {
			if node := r.Nodes[m.Pod.UID]; a.cluster.Node(node) != nil {
				outcome.nodes[m.Pod.UID] = node
			}
		}
	}
	return outcome
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
