// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// sums adds up, for every node, the effects of placed pods' terms on the node's domains, over any
// number of topology keys, so that decisions need not consider every combination of domains.
// Classes with the same effects share the sums.
//
// Invariant: byNode[n] is the sum, over all parts, of the effects of the pods in n's domain. A node
// that moves to another domain triggers a recount of all sums, since the parts keep no counts by
// domain.
type sums struct {
	ix     *index
	says   map[[2]uint64][]effect // by PodClass.Affinities: effects of one pod on the parts
	byNode []int64                // by node: sum of all effects

	parts []sumsPart
}

// sumsPart is a topology with the domains of nodes as of the last recount.
type sumsPart struct {
	*topology
	read []int32 // by node: domain at the last recount
}

// addTerm makes pods with the given affinities count with the given weight in their domain of the
// topology key. If s is nil, addTerm returns new sums.
func (s *sums) addTerm(ix *index, affinities [2]uint64, key string, weight int64) *sums {
	if s == nil {
		s = &sums{ix: ix, says: map[[2]uint64][]effect{}}
	}
	i := slices.IndexFunc(s.parts, func(p sumsPart) bool { return p.key == key })
	if i < 0 {
		i = len(s.parts)
		s.parts = append(s.parts, sumsPart{topology: s.ix.topologyFor(key, false)})
	}
	s.says[affinities] = append(s.says[affinities], effect{part: i, weight: weight})
	return s
}

// bytes estimates the memory of the sums.
func (s *sums) bytes() int { return (8 + 4*len(s.parts)) * len(s.byNode) }

// sumsParts returns the parts, or nil if s is nil.
func (s *sums) sumsParts() []sumsPart {
	if s == nil {
		return nil
	}
	return s.parts
}

// countAll recounts the whole cluster.
func (s *sums) countAll() {
	s.byNode = make([]int64, len(s.ix.c.Nodes))
	s.ix.meter.Looked += len(s.parts) * len(s.byNode)
	counts := make([][]int64, len(s.parts))
	for i := range s.parts {
		counts[i] = make([]int64, s.parts[i].domainCount())
	}

	for affinities, effects := range s.says {
		for pods := range s.ix.placed.byTerms.withHash(cluster.ShortHash(affinities[0])) {
			if pods.class.Affinities != affinities {
				continue
			}
			for node, n := range pods.nodes.all {
				for _, e := range effects {
					if domain := s.parts[e.part].domain[node]; domain != none {
						counts[e.part][domain] += e.weight * int64(n.staying+n.leaving)
					}
				}
			}
		}
	}

	for i := range s.parts {
		p := &s.parts[i]
		p.read = append(p.read[:0], p.domain...)
		for node, domain := range p.read {
			if domain != none {
				s.byNode[node] += counts[i][domain]
			}
		}
	}
}

// followChanges applies changes, which must extend to the end of the log, and appends to moved the
// nodes whose sums may have changed. A node may be appended more than once.
func (s *sums) followChanges(changes []cluster.Change, moved []int32) []int32 {
	for i := range changes {
		if changes[i].Kind == cluster.NodeChanged && s.isAnother(changes[i].Node) {
			before := s.byNode
			s.countAll()
			for node := range s.byNode {
				if node < len(before) && s.byNode[node] != before[node] {
					moved = append(moved, int32(node))
				}
			}
			return moved
		}
	}

	for i := range changes {
		change := &changes[i]
		sign := int64(1)
		switch change.Kind {
		case cluster.PodAdded:
		case cluster.PodRemoved:
			sign = -1
		default:
			continue
		}
		for _, e := range s.says[change.Class.Affinities] {
			part := &s.parts[e.part]
			if domain := part.domain[change.Node]; domain != none {
				part.eachNode(domain, func(node int32) {
					s.byNode[node] += sign * e.weight
					moved = append(moved, node)
				})
			}
		}
	}

	return moved
}

// isAnother reports whether a node is new or has changed domains.
func (s *sums) isAnother(node int32) bool {
	return int(node) >= len(s.byNode) || slices.ContainsFunc(s.parts, func(p sumsPart) bool { return p.read[node] != p.domain[node] })
}

// sumTerms sums up the votes and the repelling terms, except for terms of pods with the given
// affinities. A result is nil if there are no such terms.
func (s *termEffects) sumTerms(ix *index, but [2]uint64) (votes, repelling *sums) {
	for i := range s.byAffinity {
		effects := &s.byAffinity[i]
		if effects.affinities == but {
			continue
		}
		for _, key := range effects.repelled {
			repelling = repelling.addTerm(ix, effects.affinities, key, 1)
		}
		for _, v := range effects.votes {
			votes = votes.addTerm(ix, effects.affinities, v.Key, v.Weight)
		}
	}
	return votes, repelling
}
