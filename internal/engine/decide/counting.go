package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// countedPods is what a ranking knows of the pods that its tallies count.
//
// A pod counts by the look of its class, and spread tallies count the pods of those nodes only that
// their constraint includes. in says which; it holds as long as no node has come into another
// domain, which inDomains tells.
type countedPods struct {
	in        marks                  // of each node, the spread tallies that count its pods
	inDomains int                    // what domainChanges was when the tallies were counted
	effects   map[[2]uint64][]effect // by PodClass.Look of placed pods
	places    []effect               // by tally of the plan: its tally here, and its part of that
	marks     tallySet               // scratch space of keepsTallies
}

// countTallies makes the tallies and counts the placed pods.
func (r *ranking) countTallies() {
	r.tallies, r.counted = nil, countedPods{marks: r.counted.marks}
	if len(r.plan.tallies) == 0 {
		return
	}

	r.counted.in = newMarks(len(r.ix.c.Nodes), r.plan.spreadTallies())
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
		counts := r.counted.in.of(n.Index)
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

// sumUp merges the tallies of what strangers say into one for each purpose.
func (r *ranking) sumUp() {
	kept, sums := r.tallies[:0:0], map[purpose]int{}
	for i, t := range r.tallies {
		if !r.plan.tallies[i].strangers || r.plan.combinations <= r.ix.limits.RankingGroups {
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

// spreadCounts adds up by node what the parts of merged tallies have counted by domain.
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

// effectsOf returns what a pod of the class counts in the tallies.
func (r *ranking) effectsOf(class *cluster.PodClass) []effect {
	effects, known := r.counted.effects[class.Look]
	if !known {
		const few = 1 << 10
		if len(r.counted.effects) >= few+2*len(r.ix.placed.looks) { // most are of looks whose pods are gone
			r.counted.effects = map[[2]uint64][]effect{}
		}
		effects = r.plan.effectsOf(class)
		for i := range effects {
			place := r.counted.places[effects[i].tally]
			effects[i].tally, effects[i].part = place.tally, place.part
		}
		r.counted.effects[class.Look] = effects
	}
	return effects
}

// countPod counts a pod that came to a node or left it. It returns the domain in which the pod
// counts, or none, and whether the nodes there have to be regrouped.
func (r *ranking) countPod(node int32, e effect, sign int64, terminating bool) (domain int32, regroup bool) {
	t := r.tallies[e.tally]
	if t.purpose <= spreadSoft && (terminating || !r.counted.in.of(node).has(e.tally)) {
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

// countInSum does so in a merged tally, and regroups the nodes of the domain itself.
func (r *ranking) countInSum(t *tally, node int32, e effect, sign int64) {
	part := &t.parts[e.part]
	domain := part.domain[node]
	switch {
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
