// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// goHome sets up the goal of returning pods to nodes they prefer. Its gauge counts the weight of
// preferred node affinity that pods miss, and the PreferNoSchedule taints on their nodes.
//
// The missed weight is the difference from the best of all nodes, with or without room, so that the
// gauge does not depend on the placement of other pods.
func (st *strategy) goHome() {
	r := st.Return
	most := map[int32]int64{} // the greatest weight on any node, by class
	g := &tally{title: "preferences missed", countOf: func(p *pod, n *cluster.Node) (missed int64) {
		if r.Weights {
			if _, known := most[p.Class.ID]; !known {
				most[p.Class.ID] = st.w.greatestWeight(p, func(*cluster.Node) bool { return true })
			}
			missed += most[p.Class.ID] - st.w.affinityWeight(p, n)
		}
		if r.Taints {
			missed += int64(len(unwelcomeTaints(p, n, r.TaintCounts)))
		}
		return missed
	}}
	// By weight, pods are nominated only if an open node that suits them has a greater weight.
	reachable := &reach{w: st.w}
	st.gauge, st.settled = g, r.Settled
	st.gain = func(p *pod) int64 {
		if r.Taints && len(unwelcomeTaints(p, p.Node, r.TaintCounts)) > 0 {
			return int64(len(unwelcomeTaints(p, p.Node, r.TaintCounts)))
		}
		if !r.Weights {
			return 0
		}
		return max(0, reachable.reachOf(p)-st.w.affinityWeight(p, p.Node))
	}
	st.among = st.podsAway
	st.says = func(p *pod) string {
		if taints := unwelcomeTaints(p, p.Node, r.TaintCounts); r.Taints && len(taints) > 0 {
			return "its node has the taint " + taints[0].ToString()
		}
		return "another node has more of its preferred node affinity"
	}
}

// podsAway yields the pods that may miss a preference: pods of classes with preferred node
// affinity, and pods on nodes with taints. Most classes have no preference.
func (st *strategy) podsAway(yield func(*pod) bool) {
	for _, k := range st.w.hard.known {
		prefers := false
		for p := range k.pods {
			prefers = st.w.preferenceOf(p) != nil
			break // all pods of a class are alike
		}
		if !prefers && !st.Return.Taints {
			continue
		}
		for p := range k.pods {
			if (prefers || len(p.Node.Taints.Taints) > 0) && !yield(p) {
				return
			}
		}
	}
}

// reach caches, by class, the greatest weight of preferred node affinity on the open nodes that
// suit the pods of the class. The cache is valid until a node is closed or opened.
type reach struct {
	w      *world
	most   map[int32]int64 // by class
	change int             // value of closures.nodeChanges for which the map is valid
}

// reachOf returns the weight for a pod's class. It scans all nodes once per class, and again after
// a node was closed or opened.
func (r *reach) reachOf(p *pod) int64 {
	if r.most == nil || r.change != r.w.closures.nodeChanges {
		r.most, r.change = map[int32]int64{}, r.w.closures.nodeChanges
	}
	most, known := r.most[p.Class.ID]
	if !known {
		most = r.w.greatestWeight(p, func(n *cluster.Node) bool { return !isClosed(n) && r.w.suitsPod(p, n) })
		r.most[p.Class.ID] = most
	}
	return most
}

// unwelcomeTaints returns the PreferNoSchedule taints not tolerated by a pod. counts selects the
// relevant taints; nil means all. Unlike [plugins.Untolerated], it lists taints of this effect.
func unwelcomeTaints(p *pod, n *cluster.Node, counts func(t *v1.Taint) bool) (list []*v1.Taint) {
	tolerations := p.Spec().Tolerations
	for i := range n.Taints.Taints {
		t := &n.Taints.Taints[i]
		if t.Effect == v1.TaintEffectPreferNoSchedule && (counts == nil || counts(t)) && rules.TolerationOf(t, tolerations) == nil {
			list = append(list, t)
		}
	}
	return list
}
