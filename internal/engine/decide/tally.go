// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// tally counts pods by domain of one topology, for one class of pending pods and one purpose.
//
// Invariants: total is the sum of count; where included is set, levels[n] is the number of domains
// with included nodes and n pods. Domain numbers are reused when nodes change, so a tally never
// outlives a change of its topology.
type tally struct {
	purpose  purpose
	topology *topology
	// constraint is the constraint of a spread tally; nil for other tallies.
	constraint *plugins.SpreadConstraint
	self       int64 // see SpreadConstraint.Self
	lacking    int32 // domain of nodes without the label; none: these nodes have no domain

	count []int64 // by domain
	total int64   // over all domains
	// byCount is set if nodes are grouped by the count of their domain, because there are many
	// domains; otherwise they are grouped by the domain itself.
	byCount bool

	// parts are the topologies of a merged tally. The count of a merged tally is indexed by node,
	// and holds the sum over the domains of the node; its byCount is set.
	parts []tallyPart

	// The following fields are only set for hard spread constraints. included is the number of
	// included nodes of each domain. levels is, for each count, the number of domains that have
	// included nodes and this count. lowest is a lower bound of these counts.
	included []int32
	levels   []int32 // by count
	lowest   int
	present  int // number of domains with included nodes
}

// tallyPart is one of the topologies summed by a tally.
type tallyPart struct {
	*topology
	count []int64 // by domain; nil once the placed pods are counted
}

// countsIn returns the domain in which the pods of a node are counted, or none.
func (t *tally) countsIn(node int32) int32 {
	if domain := t.topology.domain[node]; domain != none {
		return domain
	}
	return t.lacking
}

// noDomain is the value of nodes without a domain.
const noDomain = int64(none)

// value returns the grouping value of the nodes of a domain.
func (t *tally) value(domain int32) int64 {
	switch {
	case !t.byCount:
		return int64(domain)
	case domain == none:
		if t.purpose == vote {
			return 0 // same value as a domain without votes
		}
		return noDomain
	case t.purpose == attract, t.purpose == repel, t.purpose == repelledBy:
		return min(t.count[domain], 1) // only zero or nonzero matters
	}
	return t.count[domain]
}

// countFor returns the count represented by a value of a group; 0 if its nodes have no domain.
func (t *tally) countFor(value int64) int64 {
	switch {
	case t.byCount && (t.purpose == vote || value != noDomain):
		return value
	case value == noDomain:
		return 0
	}
	return t.count[value]
}

// addPods adds to the count of a domain and reports whether its nodes now belong to another group.
func (t *tally) addPods(domain int32, weight int64) (regroup bool) {
	before := t.value(domain)
	if t.purpose == spreadHard && t.included[domain] > 0 {
		t.addToLevel(t.count[domain], -1)
		t.addToLevel(t.count[domain]+weight, 1)
	}
	t.count[domain] += weight
	t.total += weight
	return t.byCount && t.value(domain) != before
}

// includeNode records that a hard constraint includes a node of the domain.
func (t *tally) includeNode(domain int32) {
	if t.included[domain]++; t.included[domain] == 1 {
		t.present++
		t.addToLevel(t.count[domain], 1)
	}
}

// addToLevel adds change to the number of domains with the given count.
func (t *tally) addToLevel(count int64, change int32) {
	for int(count) >= len(t.levels) {
		t.levels = append(t.levels, 0)
	}
	t.levels[count] += change
	t.lowest = min(t.lowest, int(count))
}

// leastCount returns the minimum count from which a constraint computes the skew. It assumes that
// one domain has the given count, which exceeds its count in the tally by shift.
func (t *tally) leastCount(count, shift int64) int64 {
	if t.present == 0 {
		return t.constraint.Least(plugins.NoDomain, 0)
	}
	for t.levels[t.lowest] == 0 {
		t.lowest++
	}
	lowest := int64(t.lowest)
	switch {
	case count < lowest:
		lowest = count
	case shift > 0 && count-shift == lowest && t.levels[lowest] == 1: // it was the only domain with the lowest count
		for lowest++; lowest < count && (lowest >= int64(len(t.levels)) || t.levels[lowest] == 0); {
			lowest++
		}
	}
	return t.constraint.Least(lowest, t.present)
}

// startTally creates an empty tally for the nodes of the cluster.
func (t *tallyPlan) startTally(ix *index) *tally {
	perNode := t.purpose == spreadSoft && t.constraint.PerNode()
	topology := ix.topologyFor(t.key, perNode)
	n := topology.domainCount()
	made := &tally{purpose: t.purpose, topology: topology, constraint: t.constraint, self: t.self,
		count: make([]int64, n), byCount: ix.groupsByCount(n)}
	if perNode {
		made.byCount = true
	} else if t.purpose == spreadSoft {
		// If byCount is false, the domains of the feasible nodes can be counted by group.
		made.byCount = n > ix.limits.SoftDomains
	}
	if t.purpose == spreadHard {
		made.included = make([]int32, n)
	}
	made.lacking = t.domainOfLacking(topology)
	return made
}

// groupsByCount reports whether nodes are grouped by the count of their domain. Groups by domain
// take time in proportion to the domains for every decision, and groups by count in proportion to
// the nodes of a domain for every placed pod.
func (ix *index) groupsByCount(domains int) bool {
	return domains > ix.limits.FewDomains && domains*domains > len(ix.c.Nodes)
}

// limitGroups makes some tallies group nodes by count instead of by domain, to avoid too many
// combinations of domains.
func limitGroups(tallies []*tally, manyGroups int) {
	for {
		groups, most := 1, (*tally)(nil)
		for _, t := range tallies {
			if t.byCount {
				continue
			}
			groups = min(groups*max(1, t.topology.domainCount()), 1<<30)
			if t.purpose != spreadSoft && (most == nil || t.topology.domainCount() > most.topology.domainCount()) {
				most = t
			}
		}
		if groups <= manyGroups || most == nil {
			return
		}
		most.byCount = true
	}
}
