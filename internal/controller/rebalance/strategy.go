// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"iter"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// strategy is a goal applied to a world.
//
// A goal states the user's intent; a strategy drives the search towards it. Every strategy has a
// gauge. A strategy that moves one pod at a time has the function gain; a strategy with moves that
// help only together has the function attempts. The meaning of a zero value is documented at each
// field.
type strategy struct {
	*Goal
	w     *world
	sees  func(n *cluster.Node) bool // reports whether the policy covers a node
	gauge gauge
	at    int // index of the gauge in world.gauges
	// gain is the reduction of the gauge by removing just this pod; with 0 the pod is not
	// nominated.
	gain func(p *pod) int64
	// among iterates over the placed pods that may have a positive gain, in any order; nil means
	// all placed pods.
	among iter.Seq[*pod]
	// order sorts the nominated pods; nil means by gain, the greatest first, then by depth and
	// cost.
	order func(a, b *pod) int
	// says returns the reason to move the pod, for the user; it is called before the move.
	says func(p *pod) string
	// settled is the minimum time for which a node must have been ready before successors land on
	// it; with 0 the node need only be ready. renews accepts any node for the successors.
	settled time.Duration
	renews  bool
	// only limits the nodes to land on; nil means no limit.
	only func(n *cluster.Node) bool
	// ready returns the reason for not starting, or "". It is called until the goal has moved a
	// pod.
	ready func() string
	// attempts makes the attempts of a goal with moves that help only together, and reports whether
	// a pod was moved. gain is nil then.
	attempts func(s *search) bool
	// reselects is set if the candidates are chosen again after every move.
	reselects bool
	// price is the minimum by which moving the pod must lower the gauge; nil means that any
	// reduction will do.
	price func(p *pod) int64
	// most is the limit on the goal's moves in a plan; nil means no limit.
	most func() int
}

// bindStrategies builds the strategies of a policy, and the gauges of the world. The gauge of hard
// constraints is always the first, even for policies without heal: no goal may violate a constraint
// to reach its end.
func (policy *Policy) bindStrategies(w *world) (list []*strategy) {
	w.hard = newLedger(w, "violations", v1.DoNotSchedule)
	w.gauges = []gauge{w.hard}
	for _, goal := range policy.splitGoals() {
		st := &strategy{Goal: goal, w: w, sees: policy.seesNode}
		switch {
		case goal.Heal != nil:
			st.setupHeal()
		case goal.Return != nil:
			st.goHome()
		case goal.Consolidate != nil:
			st.consolidateNodes()
		case goal.Defragment != nil && goal.Defragment.typical:
			st.setupTypical()
		case goal.Defragment != nil:
			st.setupDefragment()
		case goal.Utilization != nil:
			st.setupUtilization()
		case goal.Duplicates != nil:
			st.setupDuplicates()
		case goal.Renew != nil:
			st.setupRenew()
		}
		// Goals that heal hard constraints share their ledger.
		if st.at = slices.Index(w.gauges, st.gauge); st.at < 0 {
			st.at = len(w.gauges)
			w.gauges = append(w.gauges, st.gauge)
		}
		list = append(list, st)
	}

	return list
}

// splitGoals returns the goals. A Defragment goal without named pods is split in two: first for the
// pending pods, then for the typical ones.
func (policy *Policy) splitGoals() (list []*Goal) {
	for i := range policy.Goals {
		goal := &policy.Goals[i]
		list = append(list, goal)
		if d := goal.Defragment; d != nil && len(d.Pods) == 0 {
			typical, evictor := *goal, *goal.Evictor
			// Only the typical goal moves pods of Jobs: it weighs the lost work against the gain
			// (see prices). Room for a pending pod has no such price.
			evictor.JobsToo = true
			typical.Evictor = &evictor
			typical.Defragment = &Defragment{typical: true}
			list = append(list, &typical)
		}
	}
	return list
}

// moveRequirements returns the requirements for a single move of the strategy. Attempts copy it and
// set within.
func (st *strategy) moveRequirements() requirements {
	return requirements{gauge: st.at, renews: st.renews, settled: st.settled, allowed: st.landingFilter()}
}

// landingFilter returns the filter of nodes for successors: nodes must be allowed by the evictor
// and by the strategy. The scheduler ignores the policy's nodeSelector, so the successor may still
// land elsewhere; then the move is not proved.
func (st *strategy) landingFilter() func(n *cluster.Node) bool {
	e := st.Evictor
	return func(n *cluster.Node) bool {
		return (!e.NodeFit || e.Targets == nil || e.Targets.Matches(n)) && (st.only == nil || st.only(n))
	}
}

// removalGain returns the amount by which removing the pod lowers a gauge. The world is unchanged
// afterwards. It costs one update of the gauge in each direction.
func removalGain(g gauge, p *pod) int64 {
	before := g.currentValue()
	g.countPod(p, p.Node, -1)
	after := g.currentValue()
	g.countPod(p, p.Node, 1)
	return before - after
}

// byPriority is the descheduler's order: the lowest priority first, then BestEffort, Burstable,
// Guaranteed.
func byPriority(a, b *pod) int {
	return cmp.Or(cmp.Compare(a.Class.Priority, b.Class.Priority), cmp.Compare(qosRank(a), qosRank(b)))
}

// qosRank is 0, 1 or 2 for BestEffort, Burstable and Guaranteed. The rank is cached in the pod for
// sorting.
func qosRank(p *pod) int {
	if p.quality == nil {
		p.quality = new(slices.Index([]v1.PodQOSClass{v1.PodQOSBestEffort, v1.PodQOSBurstable, v1.PodQOSGuaranteed}, rules.QOS(p.object)))
	}
	return *p.quality
}

// tally is a gauge summing over pods on nodes. It calls countOf when a pod is counted, and again
// when the pod is uncounted. Both calls must return the same value; otherwise the sum drifts.
type tally struct {
	title   string
	countOf func(p *pod, n *cluster.Node) int64
	sum     int64
}

func (t *tally) gaugeName() string { return t.title }

// countPod implements gauge.
func (t *tally) countPod(p *pod, n *cluster.Node, by int64) { t.sum += by * t.countOf(p, n) }

func (t *tally) currentValue() int64 { return t.sum }

// ratio is a gauge computed by the strategy itself, from pending pods. It ignores pods on nodes.
type ratio struct {
	title string
	left  func() int64
}

func (r *ratio) gaugeName() string                   { return r.title }
func (r *ratio) countPod(*pod, *cluster.Node, int64) {}
func (r *ratio) currentValue() int64                 { return r.left() }
