package rebalance

import (
	"cmp"
	"iter"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// strategy is a goal applied to a world.
//
// A goal says what a user wants; a strategy is how the search works towards it. Every strategy has
// a gauge. It has gain, for goals that move one pod at a time, or attempts, for goals whose moves
// help only together. What a strategy does not set has the zero meaning that stands at the field.
type strategy struct {
	*Goal
	w     *world
	sees  func(n *cluster.Node) bool // whether the policy covers a node
	gauge gauge
	at    int // the gauge's place among the world's
	// gain is by how much removing just this pod reduces the gauge; 0: not nominated.
	gain func(p *pod) int64
	// among are the placed pods whose gain may be above 0, in any order; nil: all of them.
	among iter.Seq[*pod]
	// order sorts the nominated pods; nil: greatest gain first, then by cost.
	order func(a, b *pod) int
	// says describes what is wrong with the pod, for the user; it is asked before the move.
	says func(p *pod) string
	// settled is how long a node to land on must have been ready; 0: it need only be ready. renews
	// is set if the pods are to be replaced, wherever their successors land.
	settled time.Duration
	renews  bool
	// only limits the nodes to land on; nil means no limit.
	only func(n *cluster.Node) bool
	// ready returns why nothing is begun, or "". It is asked until the goal has moved a pod.
	ready func() string
	// attempts, for goals whose moves help only together, makes one attempt after the other; gain
	// is nil then.
	attempts func(s *search) bool
	// anew is set if candidates are chosen again after every move.
	anew bool
	// price is by how much moving the pod has to lower the gauge at least; nil: by anything.
	price func(p *pod) int64
	// most is how many moves the goal makes in a plan; nil: as many as there are.
	most func() int
}

// bindStrategies makes the strategies of a policy, and the gauges of the world. The gauge of hard
// constraints is always the first, also for policies that do not heal: no goal may violate a
// constraint to reach its end.
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

// splitGoals returns the goals. One that makes room for whatever comes is two: first for the pods
// that are pending, then for those that are typical.
func (policy *Policy) splitGoals() (list []*Goal) {
	for i := range policy.Goals {
		goal := &policy.Goals[i]
		list = append(list, goal)
		if d := goal.Defragment; d != nil && len(d.Pods) == 0 {
			typical, evictor := *goal, *goal.Evictor
			// Only the typical goal moves pods of Jobs: it weighs the work that is lost against the
			// gain (see prices). Room for a pending pod has no such price.
			evictor.JobsToo = true
			typical.Evictor = &evictor
			typical.Defragment = &Defragment{typical: true}
			list = append(list, &typical)
		}
	}
	return list
}

// moveWish is what a single move of the strategy has to achieve. Attempts copy it and set within.
func (st *strategy) moveWish() wish {
	return wish{gauge: st.at, renews: st.renews, settled: st.settled, on: st.landingFilter()}
}

// landingFilter returns which nodes a successor may land on: those that the evictor allows, and
// those that the strategy does.
func (st *strategy) landingFilter() func(n *cluster.Node) bool {
	return func(n *cluster.Node) bool { return st.Evictor.fitsNode(n) && (st.only == nil || st.only(n)) }
}

// removalGain is by how much a gauge falls if the pod is removed. The world is not changed. It
// costs one look at the gauge in each direction.
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

// qosRank is 0, 1 or 2 for BestEffort, Burstable and Guaranteed. Sorting asks often, so the pod
// remembers it.
func qosRank(p *pod) int {
	if p.quality == nil {
		p.quality = new(slices.Index([]v1.PodQOSClass{v1.PodQOSBestEffort, v1.PodQOSBurstable, v1.PodQOSGuaranteed}, qosOf(p.object)))
	}
	return *p.quality
}

// tally is a gauge that sums up the pods on nodes, one by one. of is asked when a pod is counted
// and when it is counted back, and must answer the same both times; otherwise the sum drifts.
type tally struct {
	title string
	of    func(p *pod, n *cluster.Node) int64
	sum   int64
}

func (t *tally) gaugeName() string { return t.title }

// countPod implements gauge.
func (t *tally) countPod(p *pod, n *cluster.Node, by int64) { t.sum += by * t.of(p, n) }

func (t *tally) currentValue() int64 { return t.sum }

// ratio is a gauge whose value the strategy computes itself, from what is pending. Pods on nodes do
// not count in it.
type ratio struct {
	title string
	left  func() int64
}

func (r *ratio) gaugeName() string                   { return r.title }
func (r *ratio) countPod(*pod, *cluster.Node, int64) {}
func (r *ratio) currentValue() int64                 { return r.left() }
