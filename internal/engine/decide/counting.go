// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"
	"strings"
)

// countTallies creates the tallies and counts the placed pods.
func (r *ranking) countTallies() {
	r.tallies, r.counted = nil, countedPods{marks: r.counted.marks}
	if len(r.plan.tallies) == 0 {
		return
	}

	r.counted.tallies = newMarks(len(r.ix.c.Nodes), r.plan.spreadTallies())
	r.counted.effects = map[[2]uint64][]effect{}
	for i := range r.plan.tallies {
		r.tallies = append(r.tallies, r.plan.tallies[i].startTally(r.ix))
		r.counted.places = append(r.counted.places, effect{tally: i})
	}

	r.sumUp()
	limitGroups(r.tallies, r.ix.limits.Groups)
	for _, n := range r.ix.c.Nodes {
		if n == nil {
			continue
		}
		counts := r.counted.tallies.tallies(n.Index)
		r.plan.countsPodsOf(n, counts)
		for k := range r.plan.hard {
			if t := r.tallies[k]; counts.has(k) {
				t.includeNode(t.topology.domain[n.Index])
			}
		}
	}

	r.countPods()
	r.spreadCounts()
	r.counted.inDomains = r.domainChanges()
}

// suits reports whether the nodes have the same statics and buckets for a plan with this key: it
// differs only in the pods selected by spread constraints.
func (r *ranking) suits(key rankingKey, p *plan) bool {
	before, now := r.plan.example.Class, p.example.Class
	inputs, _, _ := strings.Cut(key.signature, "\n")
	return before.Demand == now.Demand && len(r.tallies) > 0 &&
		strings.HasPrefix(r.key.signature, inputs+"\n") && r.plan.scoreKey == p.scoreKey &&
		before.Priority == now.Priority && before.Target() == now.Target() &&
		before.Simple && now.Simple && before.Bulk+now.Bulk == 0 &&
		!p.perNode && len(p.asked)+len(p.askedScores) == 0 &&
		slices.EqualFunc(r.tallies, p.tallies, func(t *tally, other tallyPlan) bool {
			return t.purpose <= spreadSoft && t.purpose == other.purpose && t.topology.key == other.key &&
				t.constraint.NodeAffinityPolicy == other.constraint.NodeAffinityPolicy &&
				t.constraint.NodeTaintsPolicy == other.constraint.NodeTaintsPolicy
		})
}

// countAnew counts the pods selected by another plan; see suits.
func (r *ranking) countAnew(p *plan) {
	r.plan = p
	r.counted.effects, r.counted.look, r.counted.latest = map[[2]uint64][]effect{}, [2]uint64{}, nil
	before := make([][]int64, len(r.tallies))
	for k, t := range r.tallies {
		t.constraint, t.self, t.total = p.tallies[k].constraint, p.tallies[k].self, 0
		before[k], t.count = t.count, make([]int64, len(t.count))
		t.levels, t.lowest = append(t.levels[:0], int32(t.present)), 0
	}
	r.countPods()
	for k, t := range r.tallies {
		for domain, n := range before[k] {
			if t.byCount && t.count[domain] != n {
				t.topology.eachNode(int32(domain), r.regroupNode)
			}
		}
	}
}

// sumUp merges the tallies of foreign terms into one per purpose, if the plan has too many
// combinations of domains.
func (r *ranking) sumUp() {
	kept, sums := r.tallies[:0:0], map[purpose]int{}
	for i, t := range r.tallies {
		if !r.plan.tallies[i].foreign || r.plan.combinations <= r.ix.limits.RankingGroups {
			r.counted.places[i].tally = len(kept)
			kept = append(kept, t)
			continue
		}
		at, known := sums[t.purpose]
		if !known {
			at = len(kept)
			sums[t.purpose] = at
			kept = append(kept, &tally{
				purpose: t.purpose, topology: r.ix.topologyFor("", true), lacking: none,
				byCount: true, count: make([]int64, len(r.ix.c.Nodes)),
			})
		}
		sum := kept[at]
		r.counted.places[i] = effect{tally: at, part: len(sum.parts)}
		sum.parts = append(sum.parts, tallyPart{t.topology, t.count})
	}

	r.tallies = kept
}

// spreadCounts adds the counts by domain of the parts of merged tallies to the counts by node.
func (r *ranking) spreadCounts() {
	for _, t := range r.tallies {
		for i := range t.parts {
			part := &t.parts[i]
			for node, domain := range part.domain {
				if domain != none {
					t.count[node] += part.count[domain]
				}
			}
			part.count = nil
		}
	}
}

// countPods counts the placed pods.
func (r *ranking) countPods() {
	if looks, all := r.plan.countedLooks(r.ix); !all {
		for _, pods := range looks {
			for _, e := range r.effectsOf(pods.class) {
				for node, n := range pods.nodes.all {
					r.countPod(node, e, int64(n.staying), false)
					r.countPod(node, e, int64(n.leaving), true)
				}
			}
		}
		return
	}

	for _, n := range r.ix.c.Nodes {
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			for _, e := range r.effectsOf(p.Class) {
				r.countPod(n.Index, e, 1, p.Terminating)
			}
		}
	}
}

// countPod counts a pod added to or removed from a node. It returns the domain of the pod, or none,
// and whether the nodes of that domain must be regrouped.
func (r *ranking) countPod(node int32, e effect, sign int64, terminating bool) (domain int32, regroup bool) {
	t := r.tallies[e.tally]
	if t.purpose <= spreadSoft && (terminating || !r.counted.tallies.tallies(node).has(e.tally)) {
		return none, false
	}
	if t.parts != nil {
		r.countInSum(t, node, e, sign)
		return none, false
	}
	domain = t.countsIn(node)
	if domain == none {
		return none, false
	}
	if t.purpose != spreadSoft && t.purpose != vote {
		r.filterVersion++
	}
	return domain, t.addPods(domain, sign*e.weight)
}

// countInSum is the variant of countPod for a merged tally. Unlike countPod, it also regroups the
// nodes of the domain.
func (r *ranking) countInSum(t *tally, node int32, e effect, sign int64) {
	part := &t.parts[e.part]
	switch domain := part.domain[node]; {
	case domain == none:
	case part.count != nil:
		part.count[domain] += sign * e.weight
	default:
		if t.purpose != vote {
			r.filterVersion++
		}
		part.eachNode(domain, func(node int32) {
			if t.addPods(node, sign*e.weight) {
				r.regroupNode(node)
			}
		})
	}
}

// domainChanges returns the number of times that a node has moved to another domain of one of the
// tallies.
func (r *ranking) domainChanges() (n int) {
	for _, t := range r.tallies {
		n += t.topology.changes
		for i := range t.parts {
			n += t.parts[i].changes
		}
	}
	return n
}
