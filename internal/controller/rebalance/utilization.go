package rebalance

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// usage is a gauge of how full nodes are, by requests.
type usage struct {
	w *world
	u *Utilization
	// sees reports whether the policy covers a node, and it is ready. Only those are below
	// thresholds, and make up the average.
	sees func(n *cluster.Node) bool
	// thresholds and targets are in millionths; those that are deviations are from settle on around
	// the average.
	resources           []v1.ResourceName
	thresholds, targets []int64
	nodes               map[int32]*fullness
	sum                 int64
}

// fullness is how full one node is.
type fullness struct {
	n *cluster.Node
	// requests are by resource, and so is used, which is in millionths.
	requests, used []int64
	pods           int64 // those that can run elsewhere
	amount         int64 // what the node adds to the gauge
}

const whole = 1_000_000 // 100 %

func newUsage(st *strategy) *usage {
	u := st.Utilization
	g := &usage{w: st.w, u: u, nodes: map[int32]*fullness{}, sees: func(n *cluster.Node) bool { return st.sees(n) && st.w.isReady(n) }}
	for name := range u.Thresholds {
		g.resources = append(g.resources, name)
	}
	slices.Sort(g.resources)
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

// aboveTarget is the name of what LowNodeUtilization makes smaller.
const aboveTarget = "use above target (millionths)"

func (g *usage) currentValue() int64 { return g.sum }

func (g *usage) fullnessOf(n *cluster.Node) *fullness {
	f := g.nodes[n.Index]
	if f == nil {
		f = &fullness{n: n, requests: make([]int64, len(g.resources)), used: make([]int64, len(g.resources))}
		g.nodes[n.Index] = f
	}
	return f
}

func (g *usage) countPod(p *pod, n *cluster.Node, by int64) {
	f := g.fullnessOf(n)
	for i, name := range g.resources {
		part, all := p.Class.Requests.Of(name), g.sizeOf(n, i)
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

// sizeOf is how much of a resource a node has.
func (g *usage) sizeOf(n *cluster.Node, i int) int64 {
	if g.resources[i] == v1.ResourcePods {
		return n.Size.Pods
	}
	return n.Size.Of(g.resources[i])
}

// shareOf is what a pod takes of a node, in millionths. It is rounded for each pod, not for the
// node: so nodes of one size gain what others lose, and no move is made for what rounding saves.
func shareOf(part, all int64) int64 {
	if all <= 0 || part <= 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(part), whole)
	if high >= uint64(all) { // more than a node can have
		return math.MaxInt32
	}
	millionths, _ := bits.Div64(high, low, uint64(all))
	return int64(min(millionths, math.MaxInt32))
}

// resolveDeviations resolves deviations, when all pods are counted. The average is that of all
// nodes together, which moves do not change: otherwise what a node adds to the gauge would depend
// on all the others, and each plan would have targets of its own.
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
		f.amount = g.excessOf(f)
		g.sum += f.amount
	}
}

func (g *usage) seenNodes() (list []*cluster.Node) {
	for _, n := range g.w.c.Nodes {
		if n != nil && g.sees(n) {
			list = append(list, n)
		}
	}
	return list
}

func (g *usage) excessOf(f *fullness) (amount int64) {
	if g.u.High {
		return boolToInt(f.pods > 0 && g.isUnder(f))
	}
	for i := range g.resources {
		amount += max(0, f.used[i]-g.targets[i])
	}
	return amount
}

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

func (g *usage) totalUsed(f *fullness) (sum int64) {
	for _, used := range f.used {
		sum += used
	}
	return sum
}

func (st *strategy) setupUtilization() {
	g := newUsage(st)
	st.gauge = g
	if st.Utilization.High {
		st.attempts = func(s *search) bool { return st.emptyUnderused(s, g) }
		return
	}

	st.anew = true
	st.ready = func() string {
		if n := len(g.listUnderused()); n <= st.Utilization.MoreThan {
			return fmt.Sprintf("%d nodes are below all thresholds, and there have to be more than %d", n, st.Utilization.MoreThan)
		}
		return ""
	}

	st.gain, st.among = func(p *pod) int64 { return removalGain(g, p) }, g.podsAboveTargets
	st.order = func(a, b *pod) int {
		return cmp.Or(cmp.Compare(g.totalUsed(g.fullnessOf(b.Node)), g.totalUsed(g.fullnessOf(a.Node))), byPriority(a, b))
	}
	st.says = func(p *pod) string { return p.Node.Name + " is above its target" }
}

// podsAboveTargets are the pods of the nodes that are above a target.
func (g *usage) podsAboveTargets() iter.Seq[*pod] {
	return func(yield func(*pod) bool) {
		for _, f := range g.nodes {
			if f.amount == 0 {
				continue
			}
			for _, p := range f.n.Pods {
				if placed := g.w.placed[p.UID]; placed != nil && !yield(placed) {
					return
				}
			}
		}
	}
}

// emptyUnderused empties one underused node after the other, onto nodes that are not underused.
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
