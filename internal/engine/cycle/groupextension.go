package cycle

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// GroupAttempt is one try to schedule the pending pods of a pod group together, as out-of-tree
// plugins see it. All of it happens on the owner.
type GroupAttempt struct {
	Group   *groups.PodGroup
	Members []*Attempt // in the order in which they are decided
	Cluster *cluster.Cluster
	// State belongs to the out-of-tree plugins.
	State any
	// Schedule decides the members once more, in the cluster as it is now, with what a plugin may
	// have changed in it for a moment. It leaves none of them on a node.
	Schedule func() GroupPlacement
}

// GroupPlacement is where members of a group would go.
type GroupPlacement struct {
	// Domain is the value of the topology key that all nodes share; empty without one.
	Domain string
	Nodes  []*cluster.Node // of the domain, if there is one
	Places []GroupPlace
	// Message is why too few members fit; empty if enough do.
	Message string
	Err     error
}

// GroupPlace is a member and the node that was found for it.
type GroupPlace struct {
	*Attempt
	Node *cluster.Node
}

// GroupBeginner is told when the attempt for a group begins, after its members' own Begin, when it
// is over or its members are about to be bound, and when members are decided anew, in some domain.
// On the owner.
type GroupBeginner interface {
	Extension
	BeginGroup(a *GroupAttempt)
	BeginPlacement(a *GroupAttempt, domain string)
	EndGroup(a *GroupAttempt)
}

// GroupRescuer is called when a group does not fit (PodGroupPostFilter), in the order of the
// profile, among DynamicResources and DefaultPreemption. On the owner.
type GroupRescuer interface {
	Extension
	RescueGroup(a *GroupAttempt) GroupRescue
}

// GroupRescue is what a group rescuer did.
type GroupRescue struct {
	// Helped: the group can be scheduled once what the plugin has begun is done. Nodes are those
	// that members are nominated to then.
	Helped bool
	Nodes  map[types.UID]string
	// Message joins the reason why the group is not scheduled.
	Message string
	// Final: no further plugin is called, because none can help.
	Final bool
	// Err: the plugin failed, and no further one is called.
	Err error
}

// PlacementScorer scores the domains in which a group fits (PlacementScore): the answers are in the
// order of the candidates, between 0 and 100, and count with the plugin's weight. On the owner.
type PlacementScorer interface {
	Extension
	ScorePlacements(a *GroupAttempt, candidates []GroupPlacement) ([]int64, error)
}
