package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// count makes the tallies and counts the pods that are there.
func (r *ranking) count() {
	r.tallies, r.effects, r.counts = nil, nil, nil
	if len(r.plan.tallies) == 0 {
		return
	}
	r.counts = make([]uint8, len(r.d.c.Nodes))
	r.effects = map[int32][]effect{}
	for i := range r.plan.tallies {
		r.tallies = append(r.tallies, r.plan.tallies[i].start(r.d))
	}
	limitGroups(r.tallies, r.d.manyGroups)
	for _, n := range r.d.c.Nodes {
		if n == nil {
			continue
		}
		counts := r.plan.countsPodsOf(n)
		r.counts[n.Index] = counts
		for k, t := range r.tallies {
			if t.purpose == spreadHard && counts&(1<<k) != 0 {
				t.include(t.topology.domain[n.Index])
			}
		}
	}
	r.countPods()
}

// countPods counts the pods that have their place.
func (r *ranking) countPods() {
	if classes, all := r.d.counted(r.plan); !all {
		for pods := range classes {
			for _, e := range r.effectsOf(pods.class) {
				for node, n := range pods.nodes {
					r.tally(node, e, int64(n.staying), false)
					r.tally(node, e, int64(n.leaving), true)
				}
			}
		}
		return
	}
	for _, n := range r.d.c.Nodes {
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			for _, e := range r.effectsOf(p.Class) {
				r.tally(n.Index, e, 1, p.Terminating)
			}
		}
	}
}

// effectsOf returns what a pod of the class counts in the tallies.
func (r *ranking) effectsOf(class *cluster.PodClass) []effect {
	effects, known := r.effects[class.ID]
	if !known {
		if len(r.effects) >= maxMembers { // many classes have one pod, and are gone
			clear(r.effects)
		}
		effects = r.plan.effects(class)
		r.effects[class.ID] = effects
	}
	return effects
}

// tally counts a pod that came to a node or left it, and tells whether the nodes of its domain have
// to be grouped anew.
func (r *ranking) tally(node int32, e effect, sign int64, terminating bool) (domain int32, regroup bool) {
	t := r.tallies[e.tally]
	if t.purpose <= spreadSoft && (terminating || r.counts[node]&(1<<e.tally) == 0) {
		return none, false
	}
	domain = t.countsIn(node)
	if domain == none {
		return none, false
	}
	if t.purpose != spreadSoft && t.purpose != vote {
		r.shifted++
	}
	return domain, t.add(domain, sign*e.weight)
}
