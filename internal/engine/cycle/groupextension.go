// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
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
