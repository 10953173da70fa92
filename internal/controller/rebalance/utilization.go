// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// usage is a gauge of the fullness of nodes, by requests.
//
// For LowNodeUtilization the gauge is the excess of nodes over their targets, summed over nodes and
// resources; for HighNodeUtilization it is the number of underused nodes that still have pods. Use
// is the sum of requests, including DaemonSet pods, relative to allocatable.
type usage struct {
	w *world
	u *Utilization
	// sees reports whether the policy covers a node and the node is ready. Only these nodes are
	// listed as below thresholds, and only these nodes count for the average.
	sees func(n *cluster.Node) bool
	// thresholds and targets are in millionths; resolveDeviations replaces deviations by absolute
	// values.
	resources           []v1.ResourceName
	thresholds, targets []int64
	nodes               []*fullness // by node index; nil before first use
	sum                 int64
}

// fullness is the use of one node.
type fullness struct {
	n *cluster.Node
	// requests and used (in millionths) are indexed by resource.
	requests, used []int64
	pods           int64 // pods that can run elsewhere
	amount         int64 // the node's contribution to the gauge
}

// whole is 100 % in millionths. Integers make sums exact: a move and its undo cancel out, unlike
// with floating point.
const whole = 1_000_000

// newUsage returns the gauge of a strategy's goal, without pods.
func newUsage(st *strategy) *usage {
	u := st.Utilization
	g := &usage{w: st.w, u: u, sees: func(n *cluster.Node) bool { return st.sees(n) && st.w.isReady(n) }}
	g.resources = slices.Sorted(maps.Keys(u.Thresholds))
	for _, name := range g.resources {
		g.thresholds = append(g.thresholds, int64(u.Thresholds[name]*whole/100))
		g.targets = append(g.targets, int64(u.Targets[name]*whole/100))
	}
	return g
}

func (g *usage) gaugeName() string {
	if g.u.High {
		return "underused nodes with pods"
	}
	return aboveTarget
}

// aboveTarget is the name of LowNodeUtilization's gauge. [Measure.String] recognizes it by that
// name.
const aboveTarget = "use above target (millionths)"

// currentValue implements gauge.
func (g *usage) currentValue() int64 { return g.sum }

// fullnessOf returns the use of a node, which is created without pods on first use.
func (g *usage) fullnessOf(n *cluster.Node) *fullness {
	for int(n.Index) >= len(g.nodes) {
		g.nodes = append(g.nodes, nil)
	}
	f := g.nodes[n.Index]
	if f == nil {
		f = &fullness{n: n, requests: make([]int64, len(g.resources)), used: make([]int64, len(g.resources))}
		g.nodes[n.Index] = f
	}
	return f
}

// countPod implements gauge.
func (g *usage) countPod(p *pod, n *cluster.Node, by int64) {
	f := g.fullnessOf(n)
	for i, name := range g.resources {
		part, all := p.Class.Requests.Amount(name), g.sizeOf(n, i)
		if name == v1.ResourcePods {
			part = 1
		}
		f.requests[i] += by * part
		f.used[i] += by * shareOf(part, all)
	}
	if !staysOnNode(p) {
		f.pods += by
	}
	g.sum -= f.amount
	f.amount = g.excessOf(f)
	g.sum += f.amount
}

// sizeOf returns the node's amount of a resource. i is the resource's index in g.resources.
func (g *usage) sizeOf(n *cluster.Node, i int) int64 {
	if g.resources[i] == v1.ResourcePods {
		return n.Size.Pods
	}
	return n.Size.Amount(g.resources[i])
}

// shareOf returns a pod's share of a node, in millionths. It is rounded per pod rather than per
// node, so that a move between nodes of equal size leaves the sum unchanged and rounding never
// causes a move.
//
//	250m of 4 CPUs: 250 * 1,000,000 / 4,000 = 62,500 millionths
//
// The product is computed in 128 bits, since memory in bytes times a million overflows 64 bits.
func shareOf(part, all int64) int64 {
	if all <= 0 || part <= 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(part), whole)
	if high >= uint64(all) { // more than the node has
		return math.MaxInt32
	}
	millionths, _ := bits.Div64(high, low, uint64(all))
	return int64(min(millionths, math.MaxInt32))
}

// resolveDeviations resolves deviations after all pods have been counted. The average over the seen
// nodes is computed only once, and moves do not change it. Otherwise a node's contribution to the
// gauge would depend on all other nodes, and the targets would change from plan to plan.
//
//	average 40 %, threshold 10 and target 15 as deviations: below 30 % is underused, above 55 % overused
func (g *usage) resolveDeviations() {
	if !g.u.Deviation {
		return
	}
	seen := g.seenNodes()
	for i := range g.resources {
		requests, size := int64(0), int64(0)
		for _, n := range seen {
			requests += g.fullnessOf(n).requests[i]
			size += g.sizeOf(n, i)
		}
		average := shareOf(requests, size)
		g.thresholds[i], g.targets[i] = max(0, average-g.thresholds[i]), min(whole, average+g.targets[i])
	}

	g.sum = 0
	for _, f := range g.nodes {
		if f != nil {
			f.amount = g.excessOf(f)
			g.sum += f.amount
		}
	}
}

// seenNodes lists the ready nodes covered by the policy, in the order of their index.
func (g *usage) seenNodes() []*cluster.Node {
	return slices.DeleteFunc(slices.Clone(g.w.c.Nodes), func(n *cluster.Node) bool { return n == nil || !g.sees(n) })
}

// excessOf returns the node's contribution to the gauge.
func (g *usage) excessOf(f *fullness) (amount int64) {
	if g.u.High {
		return boolToInt(f.pods > 0 && g.isUnder(f))
	}
	for i := range g.resources {
		amount += max(0, f.used[i]-g.targets[i])
	}
	return amount
}

// isUnder reports whether a node is below its threshold in every resource; as in the descheduler,
// use equal to the threshold counts as below.
func (g *usage) isUnder(f *fullness) bool {
	for i := range g.resources {
		if f.used[i] > g.thresholds[i] {
			return false
		}
	}
	return true
}

// listUnderused lists the nodes below all thresholds that are not about to be removed, the emptiest
// first.
func (g *usage) listUnderused() (list []*fullness) {
	for _, n := range g.seenNodes() {
		if g.w.whyLeaving(n) == "" && g.isUnder(g.fullnessOf(n)) {
			list = append(list, g.fullnessOf(n))
		}
	}
	slices.SortFunc(list, func(a, b *fullness) int {
		return cmp.Or(cmp.Compare(g.totalUsed(a), g.totalUsed(b)), cmp.Compare(a.n.Name, b.n.Name))
	})
	return list
}

// totalUsed adds up the shares of all resources, to sort nodes by use.
func (g *usage) totalUsed(f *fullness) (sum int64) {
	for _, used := range f.used {
		sum += used
	}
	return sum
}

// setupUtilization sets up the goal Utilization. The descheduler evicts pods until a node is below
// its target by estimate; Berth instead proves each move: the successor must land on a node where
// the move as a whole lowers the gauge. The number of underused nodes is checked only before the
// first move.
func (st *strategy) setupUtilization() {
	g := newUsage(st)
	st.gauge = g
	if st.Utilization.High {
		st.attempts = func(s *search) bool { return st.emptyUnderused(s, g) }
		return
	}

	st.reselects = true
	st.ready = func() string {
		if n := len(g.listUnderused()); n <= st.Utilization.MoreThan {
			return fmt.Sprintf("nodes below all thresholds: %d, and more than %d are required", n, st.Utilization.MoreThan)
		}
		return ""
	}

	st.gain, st.among = func(p *pod) int64 { return removalGain(g, p) }, g.podsAboveTargets
	st.order = func(a, b *pod) int {
		return cmp.Or(cmp.Compare(g.totalUsed(g.fullnessOf(b.Node)), g.totalUsed(g.fullnessOf(a.Node))), byPriority(a, b))
	}
	st.says = func(p *pod) string { return p.Node.Name + " is above its target" }
}

// podsAboveTargets yields the pods of the nodes above a target. Pods of other nodes have zero gain,
// so they need not be examined.
func (g *usage) podsAboveTargets(yield func(*pod) bool) {
	for _, f := range g.nodes {
		if f == nil || f.amount == 0 {
			continue
		}
		for _, p := range f.n.Pods {
			if placed := g.w.placed[p.UID()]; placed != nil && !yield(placed) {
				return
			}
		}
	}
}

// emptyUnderused empties the underused nodes in turn, onto nodes that are not underused. It reports
// whether one was emptied. It does nothing if all nodes are underused: their pods would have
// nowhere to go.
func (st *strategy) emptyUnderused(s *search, g *usage) bool {
	list := g.listUnderused()
	if len(list) <= st.Utilization.MoreThan || len(list) == len(g.seenNodes()) {
		return false
	}

	low := map[*cluster.Node]bool{}
	for _, n := range st.w.c.Nodes {
		if n != nil && g.isUnder(g.fullnessOf(n)) {
			low[n] = true
		}
	}

	for _, f := range list {
		// The node is already empty.
		if f.pods == 0 {
			continue
		}
		st.only = func(n *cluster.Node) bool { return !low[n] }
		if s.emptyNode(st, f.n, "") {
			return true
		}
	}

	return false
}
