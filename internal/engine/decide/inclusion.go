// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// inclusionSet counts, by domain, the nodes included by a hard spread constraint. The constraint
// considers only the domains with such a node.
type inclusionSet struct {
	keys       []*topology // topologies of all hard constraints of the pod; included nodes have all their labels
	constraint plugins.SpreadConstraint
	topology   *topology

	domains  []int32 // by node: domain in which it is counted, or none
	included []int32 // by domain: number of included nodes
	present  int     // number of domains with included nodes
}

// updateNode recounts a node; n is nil for a deleted node.
func (s *inclusionSet) updateNode(node int32, n *cluster.Node, by *plugins.SpreadInclusion) {
	for int(node) >= len(s.domains) {
		s.domains = append(s.domains, none)
	}
	now := none
	if n != nil && !slices.ContainsFunc(s.keys, func(t *topology) bool { return t.domain[node] == none }) &&
		by.Includes(&s.constraint, n) {
		now = s.topology.domain[node]
	}

	for len(s.included) < s.topology.domainCount() {
		s.included = append(s.included, 0)
	}
	before := s.domains[node]
	if before == now {
		return
	}

	s.domains[node] = now
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
