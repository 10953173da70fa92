// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// GroupAttempt is one try to schedule the pending pods of a pod group together, in the view of
// out-of-tree plugins. All of it happens on the owner.
type GroupAttempt struct {
	Group   *groups.PodGroup
	Members []*Attempt // in the order in which they are decided
	Cluster *cluster.Cluster
	// State belongs to the out-of-tree plugins.
	State any
	// Schedule decides the members once more in the current cluster, including a plugin's temporary
	// changes. It leaves none of them on a node.
	Schedule func() GroupPlacement
}

// GroupPlacement holds the nodes chosen for members of a group.
type GroupPlacement struct {
	// Domain is the value of the topology key shared by all nodes; empty without a topology key.
	Domain string
	Nodes  []*cluster.Node // of the domain, if there is one
	Places []GroupPlace
	// Message is the reason why too few members fit; empty if enough do.
	Message string
	Err     error
}

// GroupPlace is a member and its node.
type GroupPlace struct {
	*Attempt
	Node *cluster.Node
}

// GroupBeginner is notified when the attempt for a group begins, after its members' own Begin, when
// it is over or its members are about to be bound, and when members are decided again, in some
// domain. On the owner.
type GroupBeginner interface {
	Extension
	BeginGroup(a *GroupAttempt)
	BeginPlacement(a *GroupAttempt, domain string)
	EndGroup(a *GroupAttempt)
}

// GroupPostFilterer is called when a group does not fit (PodGroupPostFilter), in the order of the
// profile, among DynamicResources and DefaultPreemption. On the owner.
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
	// Message joins the reason why the group is not scheduled.
	Message string
	// Final: no further plugin is called, because none can help.
	Final bool
	// Err: the plugin failed, and no further one is called.
	Err error
}

// PlacementScorer scores the feasible domains of a group (PlacementScore): the scores are in the
// order of the candidates, between 0 and 100, and are multiplied by the plugin's weight. On the
// owner.
type PlacementScorer interface {
	Extension
	ScorePlacements(a *GroupAttempt, candidates []GroupPlacement) ([]int64, error)
}
