package cycle

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
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
// order of the placements, between 0 and 100, and count with the plugin's weight. On the owner.
type PlacementScorer interface {
	Extension
	ScorePlacements(a *GroupAttempt, placements []GroupPlacement) ([]int64, error)
}

// beginGroup tells out-of-tree plugins that the attempt begins.
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

// endGroup tells them that it is over. A second call does nothing.
func (a *groupAttempt) endGroup() {
	if a.shown == nil {
		return
	}
	for _, e := range a.profile.beginGroup {
		e.EndGroup(a.shown)
	}
	a.shown = nil
}

// scheduleForPlugin decides the members in the cluster as a plugin has changed it.
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

// describePlacement shows a placement to out-of-tree plugins.
func (a *groupAttempt) describePlacement(from gang.Placement) GroupPlacement {
	p := GroupPlacement{Domain: from.Domain, Nodes: from.Nodes}
	for _, place := range from.Places {
		p.Places = append(p.Places, GroupPlace{&a.byAsked[place.Member].Attempt, place.Decision.Node})
	}
	return p
}

// rescueOutside asks an out-of-tree plugin at PodGroupPostFilter.
func (a *groupAttempt) rescueOutside(by GroupRescuer) groupRescue {
	r := by.RescueGroup(a.shown)
	said := groupRescue{message: r.Message, final: r.Final || r.Helped, err: r.Err}
	if r.Helped {
		said.nodes = map[*member]string{}
		for _, m := range a.members {
			if node := r.Nodes[m.Pod.UID]; a.cluster.Node(node) != nil {
				said.nodes[m] = node
			}
		}
	}
	return said
}
