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
	among func() iter.Seq[*pod]
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

// setupHeal has the ledger of violated constraints made smaller. Soft spread constraints have a
// separate ledger, which counts after the hard one.
func (st *strategy) setupHeal() {
	w := st.w
	ledger := w.hard
	if st.Heal.Soft {
		ledger = newLedger(w, "uneven spread", v1.ScheduleAnyway)
	}
	st.gauge = ledger
	st.says = func(p *pod) string { return cmp.Or(ledger.describeViolation(p), "violates a constraint") }
	st.gain = func(p *pod) int64 {
		if !st.healsPod(ledger, p) {
			return 0
		}
		return removalGain(ledger, p)
	}
	// A single kind of constraint is what a plugin of the descheduler asks for: its order is kept.
	if st.Heal.Only != "" {
		st.order = byPriority
	}
}

// healsPod reports whether a pod violates what the goal is limited to. It is a filter for
// removalGain, which knows no kinds of constraints: a pod that violates nothing of the kind is not
// moved, even if the ledger would fall for another reason.
func (st *strategy) healsPod(l *ledger, p *pod) bool {
	k := l.concernOf(p)
	switch st.Heal.Only {
	case NodeAffinity:
		return k.judge != nil && k.judge(p.Node) != nil
	case NodeTaints:
		return slices.ContainsFunc(repellingTaints(p.Pod, p.Node),
			func(t *v1.Taint) bool { return st.Heal.Taints == nil || st.Heal.Taints(t) })
	case AntiAffinity:
		return slices.ContainsFunc(k.groups, func(g *group) bool { return g.anti && k.own[g] && g.excessWithout(k, p) < g.excess })
	case Spread:
		return slices.ContainsFunc(k.groups, func(g *group) bool { return g.spread != nil && g.excessWithout(k, p) < g.excess })
	}
	return l.static > 0 && countMisfits(k, p, p.Node) > 0 ||
		slices.ContainsFunc(k.groups, func(g *group) bool { return g.excess > 0 }) // of no other can it lower any
}

// excessWithout is the group's excess if the pod is removed. The group is as before afterwards.
func (g *group) excessWithout(k *concern, p *pod) int64 {
	if !g.movePod(p.Node, k.own[g], k.counts[g], -1) {
		return g.excess
	}
	defer g.movePod(p.Node, k.own[g], k.counts[g], 1)
	return g.measureExcess()
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

// goHome counts the weight of preferred node affinity that pods miss, and the PreferNoSchedule
// taints on their nodes.
//
// A weight is missed relative to the best node of all, whether or not it has room, so that the
// gauge does not depend on where other pods are.
func (st *strategy) goHome() {
	r := st.Return
	most := map[int32]int64{} // the greatest weight on any node, by class
	g := &tally{title: "preferences missed", of: func(p *pod, n *cluster.Node) (missed int64) {
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
	// What pods are nominated for is what they can reach: open nodes that suit them.
	reachable := &reach{w: st.w}
	st.gauge, st.settled = g, r.Settled
	st.gain = func(p *pod) int64 {
		if r.Taints && len(unwelcomeTaints(p, p.Node, r.TaintCounts)) > 0 {
			return int64(len(unwelcomeTaints(p, p.Node, r.TaintCounts)))
		}
		if !r.Weights {
			return 0
		}
		return max(0, reachable.of(p)-st.w.affinityWeight(p, p.Node))
	}
	st.says = func(p *pod) string {
		if taints := unwelcomeTaints(p, p.Node, r.TaintCounts); r.Taints && len(taints) > 0 {
			return "its node has the taint " + taints[0].ToString()
		}
		return "another node has more of its preferred node affinity"
	}
}

// reach is the greatest weight of the preferred node affinity of a class on the nodes that are open
// and suit its pods, while no node changes.
type reach struct {
	w      *world
	most   map[int32]int64 // by class
	change int             // of the nodes, until which it is good
}

// of returns the weight for a pod's class. It looks at all nodes once per class, and again when a
// node was closed or opened.
func (r *reach) of(p *pod) int64 {
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

// unwelcomeTaints returns the PreferNoSchedule taints that a pod does not tolerate. counts selects
// the taints that matter; nil means all.
func unwelcomeTaints(p *pod, n *cluster.Node, counts func(t *v1.Taint) bool) (list []*v1.Taint) {
	for i := range n.Taints.Taints {
		t := &n.Taints.Taints[i]
		if t.Effect == v1.TaintEffectPreferNoSchedule && (counts == nil || counts(t)) && !toleratesTaint(p, t) {
			list = append(list, t)
		}
	}
	return list
}

// setupDuplicates counts pods of one owner with the same images beyond an even share on a node.
//
//	6 pods of a kind, 4 nodes that suit them: an even share is 2
//	on the nodes 4, 1, 1, 0: surplus 2 + 0 + 0 + 0 = 2
//
// The share is rounded up. The nodes are counted once, when a pod of the kind is first seen.
func (st *strategy) setupDuplicates() {
	g := &evenness{w: st.w, kinds: map[string]*kind{}, of: map[*pod]*kind{}, excluded: st.Duplicates.ExcludeOwners}
	st.gauge, st.anew = g, true
	st.gain, st.among = g.surplusOf, g.podsInSurplus
	st.says = func(p *pod) string { return "more of its kind than an even share are on its node" }
}

// evenness is a gauge of duplicates. It sums up the surplus of all kinds, and recounts a kind only
// when its share changes.
type evenness struct {
	w        *world
	excluded []string
	kinds    map[string]*kind
	of       map[*pod]*kind // once it was asked for
	sum      int64
}

// kind is the pods with the same owner and images.
type kind struct {
	members map[*pod]bool
	pods    map[int32]int64 // by node index
	all     int64
	nodes   int64 // that can take them at all
	surplus int64
}

func (e *evenness) gaugeName() string { return "duplicates" }

func (e *evenness) currentValue() int64 { return e.sum }

// surplusOf is by how many the pods of its kind on its node exceed an even share.
func (e *evenness) surplusOf(p *pod) int64 {
	k := e.kindOf(p)
	if k == nil || k.surplus == 0 {
		return 0
	}
	return max(0, k.pods[p.Node.Index]-k.evenShare())
}

// podsInSurplus are the pods of all kinds of which a node has too many. Most kinds have none, so
// that the search need not ask every pod of the cluster.
func (e *evenness) podsInSurplus() iter.Seq[*pod] {
	return func(yield func(*pod) bool) {
		for _, k := range e.kinds {
			if k.surplus == 0 {
				continue
			}
			for p := range k.members {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// kindOf returns the kind of a pod; nil: it has none. A successor is of its victim's kind, since it
// has the same owner and images.
func (e *evenness) kindOf(p *pod) *kind {
	k, known := e.of[p]
	if known {
		return k
	}
	if name := e.nameKind(p); name != "" {
		if k = e.kinds[name]; k == nil {
			k = &kind{members: map[*pod]bool{}, pods: map[int32]int64{}, nodes: e.w.countSuitable(p)}
			e.kinds[name] = k
		}
	}
	e.of[p] = k
	return k
}

// nameKind identifies a pod's kind; "" means none. As in the descheduler, the owner is known by its
// name, which manifests have as well.
func (e *evenness) nameKind(p *pod) string {
	owner := p.Class.Controller
	if owner == nil || owner.Kind == "DaemonSet" || slices.Contains(e.excluded, owner.Kind) {
		return ""
	}
	key := p.Namespace() + "/" + owner.Kind + "/" + owner.Name
	for i := range p.Spec().Containers {
		key += " " + p.Spec().Containers[i].Image
	}
	return key
}

// evenShare is how many pods of the kind one node has if they are spread evenly, rounded up.
// Without a node that suits them, all of them may be on one.
func (k *kind) evenShare() int64 { return (k.all + max(k.nodes, 1) - 1) / max(k.nodes, 1) }

// countPod implements gauge. It costs a few additions, except when the share changes.
func (e *evenness) countPod(p *pod, n *cluster.Node, by int64) {
	k := e.kindOf(p)
	if k == nil {
		return
	}

	if by > 0 {
		k.members[p] = true
	} else {
		delete(k.members, p)
	}

	share, before := k.evenShare(), k.pods[n.Index]
	k.pods[n.Index] += by
	k.all += by
	e.sum -= k.surplus
	k.surplus += max(0, before+by-share) - max(0, before-share)
	if k.evenShare() != share { // which concerns all of its nodes
		k.surplus = 0
		for _, count := range k.pods {
			k.surplus += max(0, count-k.evenShare())
		}
	}
	e.sum += k.surplus
}

// renewal is a gauge of the pods that are to be replaced, and of those that have ended and are to
// be removed.
type renewal struct {
	tally
	ended []*pod
	left  map[*pod]bool // of those that have ended
}

// currentValue implements gauge: both kinds of pods count alike.
func (r *renewal) currentValue() int64 { return r.sum + int64(len(r.left)) }

// setupRenew has pods replaced that the goal names, by age, restarts or state, and those removed
// that have ended.
func (st *strategy) setupRenew() {
	wants := func(p *pod) string {
		object := p.object
		// A policy may look at the phase: a successor is Pending when it is made, but it is to be
		// judged as it runs.
		if p.victim != p { // as it will be
			object = object.DeepCopy()
			object.Status.Phase = v1.PodRunning
		}
		return st.Renew.Wants(object, st.w.now)
	}
	st.gauge = &renewal{left: map[*pod]bool{}, tally: tally{title: cmp.Or(st.Renew.Title, "pods to renew"),
		// Successors count 0 even if they would have to be renewed: refusalOf does not begin such
		// moves.
		of: func(p *pod, n *cluster.Node) int64 {
			return boolToInt(p.victim == p && st.sees(n) && st.Scope.includesPod(p) && wants(p) != "")
		}}}
	st.renews = true
	st.gain = func(p *pod) int64 { return boolToInt(wants(p) != "") }
	st.says = wants
	if st.Renew.Before != nil {
		st.order = func(a, b *pod) int { return st.Renew.Before(a.object, b.object) }
	}
}

// nominateEnded finds the pods that have ended and are to be removed. Those of a node that is not
// ready cannot go. They are on no node of the cluster, so the gauge is not told of them as of
// others.
func (st *strategy) nominateEnded() {
	g, renews := st.gauge.(*renewal)
	if !renews {
		return
	}
	for _, p := range st.w.ended {
		n := st.w.c.Node(p.object.Spec.NodeName)
		if n != nil && st.sees(n) && st.w.isReady(n) && st.Scope.includesPod(p) && st.says(p) != "" {
			g.ended, g.left[p] = append(g.ended, p), true
		}
	}
	if st.order != nil {
		slices.SortStableFunc(g.ended, st.order)
	}
}

// ratio is a gauge whose value the strategy computes itself, from what is pending. Pods on nodes do
// not count in it.
type ratio struct {
	title string
	left  func() int64
}

func (r *ratio) gaugeName() string                   { return r.title }
func (r *ratio) countPod(*pod, *cluster.Node, int64) {}
func (r *ratio) currentValue() int64                 { return r.left() }
