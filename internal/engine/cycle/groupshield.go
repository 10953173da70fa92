package cycle

import (
	"cmp"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// shield keeps pods from being chosen as victims for reasons that a search on their nodes cannot
// see: their group leaves as a whole, and other pods of it are too important or protected by a
// budget. While the shield is up, they count on their nodes with the highest priority there is.
type shield struct {
	c    *cluster.Cluster
	pods []*cluster.Pod
}

// shields returns the shield for a preemptor of this priority, or for a group whose lowest priority
// that is, and highest its highest. It protects the pods of the preemptor's own group (nil for a
// lone pod) and groups of at least its priority that leave only as a whole; with budgets, also
// groups that could not leave without violating one. Gentle preemption spares all groups of at
// least its priority: what replaces one of their pods would wait with that priority, and could
// preempt the preemptor in turn.
func (gs *podGroups) shields(own *groups.Group, of *profile, priority, highest int32, budgets bool) *shield {
	s := &shield{c: gs.cluster}
	if own != nil {
		for _, p := range gs.membersOnNodes(own) {
			s.raise(p, highest)
		}
	}

	if !gs.gates.Preemption || !of.GentlePreemption && !gs.groups.AnyWhole() {
		return s
	}
	for _, g := range gs.groups.Sorted() {
		if g == own || g.Object == nil || !of.GentlePreemption && !g.Whole() {
			continue
		}
		unit := gs.membersOnNodes(g)
		if g.Priority() < priority && !(g.Whole() && budgets && gs.breaksBudget(unit)) {
			continue
		}
		for _, p := range unit {
			if g.Whole() || !p.Preempted {
				s.raise(p, priority)
			}
		}
	}

	return s
}

func (gs *podGroups) membersOnNodes(g *groups.Group) (list []*cluster.Pod) {
	for uid := range g.Members {
		if p := gs.cluster.Pod(uid); p != nil && p.Node != nil {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *cluster.Pod) int { return cmp.Compare(a.UID, b.UID) })
	return list
}

// raise shields a pod if a preemptor of this priority could choose it.
func (s *shield) raise(p *cluster.Pod, priority int32) {
	if p.Class.Priority >= priority {
		return
	}
	n, stand := p.Node, *p
	s.c.RemovePod(p.UID)
	stand.Node, stand.Class = nil, topPriority(s.c, p)
	s.c.Place(&stand, n)
	s.pods = append(s.pods, p)
}

// topPriority returns the class of a pod with the highest priority there is.
func topPriority(c *cluster.Cluster, p *cluster.Pod) *cluster.PodClass {
	as := v1.Pod{Spec: p.Class.Spec.Object()}
	as.Namespace, as.Name, as.UID, as.Labels = p.Namespace(), p.Name, p.UID, p.Class.Labels
	if p.Class.Controller != nil {
		as.OwnerReferences = []metav1.OwnerReference{*p.Class.Controller}
	}
	as.Spec.Priority = new(int32(math.MaxInt32))
	return c.Pending(&as).Class
}

// lower puts the pods back as they were.
func (s *shield) lower() {
	for _, p := range s.pods {
		n := s.c.Pod(p.UID).Node
		s.c.RemovePod(p.UID)
		s.c.Place(p, n)
	}
	s.pods = nil
}

// breaksBudget tells whether a disruption budget forbids that all of the pods leave. Pods that are
// already leaving do not count.
func (gs *podGroups) breaksBudget(unit []*cluster.Pod) bool {
	leave := map[*cluster.Budget]int32{}
	for _, p := range unit {
		for _, budget := range gs.cluster.BudgetsOf(p.Class) {
			if _, counted := budget.Status.DisruptedPods[p.Name]; !counted && !p.Terminating {
				leave[budget]++
			}
		}
	}
	for budget, n := range leave {
		if allowed := budget.Status.DisruptionsAllowed; allowed-n < min(0, allowed) {
			return true
		}
	}
	return false
}
