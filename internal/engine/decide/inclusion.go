package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// inclusionSet is the nodes whose pods a hard spread constraint counts, by domain. The constraint
// considers the domains that have such a node.
type inclusionSet struct {
	keys       []*topology // of all hard constraints of the pod: nodes must have them
	constraint plugins.SpreadConstraint
	topology   *topology

	of       []int32 // by node: the domain that it is counted in, or none
	included []int32 // nodes by domain
	present  int     // domains with nodes
}

// inclusionFor returns the set for the constraint of a tally; keys are of all hard constraints.
func (b *base) inclusionFor(pl *plan, t *tallyPlan, topology *topology, keys []*topology) *inclusionSet {
	for _, set := range b.sets {
		if set.topology == topology && set.constraint.NodeAffinityPolicy == t.constraint.NodeAffinityPolicy &&
			set.constraint.NodeTaintsPolicy == t.constraint.NodeTaintsPolicy && slices.Equal(set.keys, keys) {
			return set
		}
	}
	if b.inclusion == nil {
		b.inclusion = pl.inclusion
	}
	set := &inclusionSet{keys: slices.Clone(keys), constraint: *t.constraint, topology: topology}
	for i := range b.at {
		set.updateNode(b, int32(i))
	}
	b.sets = append(b.sets, set)
	return set
}

// updateNode counts a node anew.
func (s *inclusionSet) updateNode(b *base, node int32) {
	for int(node) >= len(s.of) {
		s.of = append(s.of, none)
	}
	now := none
	if n := b.ix.c.Nodes[node]; n != nil &&
		!slices.ContainsFunc(s.keys, func(t *topology) bool { return t.domain[node] == none }) && b.inclusion.Includes(&s.constraint, n) {
		now = s.topology.domain[node]
	}

	for len(s.included) < s.topology.domainCount() {
		s.included = append(s.included, 0)
	}
	before := s.of[node]
	if before == now {
		return
	}

	s.of[node] = now
	if now != none {
		if s.included[now]++; s.included[now] == 1 {
			s.present++
		}
	}

	if before != none {
		if s.included[before]--; s.included[before] == 0 {
			s.present--
		}
	}
}
