// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Detail implements Detailer. It names the constraint and the counts compared. It returns nil if
// the pod lacks a readable hard constraint: this plugin then rejects no nodes.
func (s *PodTopologySpread) Detail(c *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	constraints, err := s.Hard(c, p)
	if err != nil || len(constraints) == 0 {
		return nil
	}

	domains := countHard(c, p, constraints)
	return func(n *cluster.Node) string {
		for i := range constraints {
			constraint := &constraints[i]
			value, ok := n.Lookup(constraint.TopologyKey)
			if !ok {
				return "lacks the label " + constraint.TopologyKey
			}
			// Computed for each node, because details are shown only for a few nodes.
			fewest, lowest := lowestDomain(domains[i])
			least := constraint.Least(lowest, len(domains[i]))
			if count := domains[i][value]; !constraint.Allows(count, constraint.Self(p.Class), least) {
				return spreadDetail(constraint, value, count, fewest, lowest, least)
			}
		}
		return ""
	}
}

// spreadDetail describes one violated constraint, for example: zone=a has 3 of the pods that match
// app=web, zone b has the fewest, 1, maxSkew 1. With fewer domains than minDomains the count is
// compared with 0, which is no domain's count, so the text explains minDomains instead.
func spreadDetail(c *SpreadConstraint, value string, count int64, fewest string, lowest, least int64) string {
	text := fmt.Sprintf("%s=%s has %d of the pods that match %s", c.TopologyKey, value, count, c.Selector)
	if least < lowest || lowest == NoDomain {
		return fmt.Sprintf("%s, with fewer domains than minDomains %d the least is 0, maxSkew %d", text, c.MinDomains, c.MaxSkew)
	}
	return fmt.Sprintf("%s, %s has the fewest, %d, maxSkew %d", text, fewest, lowest, c.MaxSkew)
}

// lowestDomain returns the domain with the fewest pods. It returns the first by name of several
// such domains, to keep the text stable. Without any domain it returns "" and NoDomain.
func lowestDomain(counts map[string]int64) (value string, lowest int64) {
	lowest = NoDomain
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] < lowest {
			value, lowest = name, counts[name]
		}
	}
	return value, lowest
}
