package rebalance

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// usage is a gauge of how full nodes are, by requests.
type usage struct {
	w *world
	u *Utilization
	// thresholds and targets are per node if they are deviations from the average, and otherwise
	// the same for all; in millionths.
	resources           []v1.ResourceName
	thresholds, targets []int64
	nodes               map[int32]*fullness
	sum                 int64
}

// fullness is how full one node is.
type fullness struct {
	n      *cluster.Node
	used   []int64
	pods   int64 // those that can run elsewhere
	amount int64 // what the node adds to the gauge
}

const whole = 1_000_000 // 100 %

func newUsage(w *world, u *Utilization) *usage {
	g := &usage{w: w, u: u, nodes: map[int32]*fullness{}}
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

func (g *usage) name() string {
	if g.u.High {
		return "underused nodes with pods"
	}
	return "use above target (millionths)"
}

func (g *usage) value() int64 { return g.sum }

func (g *usage) at(n *cluster.Node) *fullness {
	f := g.nodes[n.Index]
	if f == nil {
		f = &fullness{n: n, used: make([]int64, len(g.resources))}
		g.nodes[n.Index] = f
	}
	return f
}

func (g *usage) count(p *pod, n *cluster.Node, by int64) {
	f := g.at(n)
	for i, name := range g.resources {
		if name == v1.ResourcePods {
			f.used[i] += by
		} else {
			f.used[i] += by * p.Class.Requests.Of(name)
		}
	}
	if !stays(p) {
		f.pods += by
	}
	g.sum -= f.amount
	f.amount = g.amount(f)
	g.sum += f.amount
}

// share is the node's utilization, in millionths.
func (g *usage) share(f *fullness, i int) int64 {
	all := f.n.Size.Of(g.resources[i])
	if g.resources[i] == v1.ResourcePods {
		all = f.n.Size.Pods
	}
	if all == 0 {
		return 0
	}
	return int64(float64(f.used[i]) / float64(all) * whole)
}

// limits returns the threshold and the target of a resource; with deviations, around the average of
// all nodes.
func (g *usage) limits(i int) (threshold, target int64) {
	threshold, target = g.thresholds[i], g.targets[i]
	if !g.u.Deviation {
		return threshold, target
	}
	sum, count := int64(0), int64(0)
	for _, n := range g.w.c.Nodes {
		if n != nil {
			sum += g.share(g.at(n), i)
			count++
		}
	}
	average := sum / max(count, 1)
	return max(0, average-threshold), min(whole, average+target)
}

func (g *usage) amount(f *fullness) (amount int64) {
	if g.u.High {
		return one(f.pods > 0 && g.under(f))
	}
	for i := range g.resources {
		_, target := g.limits(i)
		amount += max(0, g.share(f, i)-target)
	}
	return amount
}

func (g *usage) under(f *fullness) bool {
	for i := range g.resources {
		if threshold, _ := g.limits(i); g.share(f, i) > threshold {
			return false
		}
	}
	return true
}

// underused lists the nodes below all thresholds that are not about to be removed, the emptiest
// first.
func (g *usage) underused() (list []*fullness) {
	for _, n := range g.w.c.Nodes {
		if n != nil && g.w.leaves(n) == "" && g.under(g.at(n)) {
			list = append(list, g.at(n))
		}
	}
	slices.SortFunc(list, func(a, b *fullness) int {
		return cmp.Or(cmp.Compare(g.total(a), g.total(b)), cmp.Compare(a.n.Name, b.n.Name))
	})
	return list
}

func (g *usage) total(f *fullness) (sum int64) {
	for i := range g.resources {
		sum += g.share(f, i)
	}
	return sum
}

func (st *strategy) utilization() {
	g := newUsage(st.w, st.Utilization)
	st.gauge = g
	if st.Utilization.High {
		st.attempts = func(s *search) bool { return st.emptyUnderused(s, g) }
		return
	}
	st.anew = true
	st.ready = func() string {
		if n := len(g.underused()); n <= st.Utilization.MoreThan {
			return fmt.Sprintf("%d nodes are below all thresholds, and there have to be more than %d", n, st.Utilization.MoreThan)
		}
		return ""
	}
	st.gain = func(p *pod) int64 { return removal(g, p) }
	st.order = func(a, b *pod) int {
		return cmp.Or(cmp.Compare(g.total(g.at(b.Node)), g.total(g.at(a.Node))), byPriority(a, b))
	}
	st.says = func(p *pod) string { return p.Node.Name + " is above its target" }
}

// emptyUnderused empties one underused node after the other, onto nodes that are not underused.
func (st *strategy) emptyUnderused(s *search, g *usage) bool {
	list := g.underused()
	if len(list) <= st.Utilization.MoreThan || len(list) == st.w.c.Len() {
		return false
	}
	low := map[*cluster.Node]bool{}
	for _, f := range list {
		low[f.n] = true
	}
	for _, f := range list {
		if f.pods == 0 || !s.sees(f.n) {
			continue
		}
		st.only = func(n *cluster.Node) bool { return !low[n] }
		if s.empty(st, f.n, "") {
			return true
		}
	}
	return false
}
