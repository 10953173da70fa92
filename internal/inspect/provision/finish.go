// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// podsOf lists the pods of a node, except those of DaemonSets, as namespace/name.
func podsOf(n *cluster.Node) []string {
	list := []string{}
	for _, pod := range n.Pods {
		if rules.KindOf(pod.Class.Controller.Reference()) != rules.DaemonSet {
			list = append(list, pod.Namespace()+"/"+pod.Name())
		}
	}
	slices.Sort(list)
	return list
}

// dropEmpty removes nodes without pods, and excludes their cost from the plan. The packing
// sometimes buys a node for pods that the engine places elsewhere.
func (m *maker) dropEmpty() {
	p := m.plan
	kept := p.Nodes[:0]
	for _, n := range p.Nodes {
		if len(podsOf(m.w.Cluster().Node(n.Name))) > 0 {
			kept = append(kept, n)
			continue
		}
		m.w.Do(&simulate.Operation{RemoveNode: &simulate.Nodes{Node: n.Name}})
		// Remove any node of the offer from bought, because only their number matters.
		at := slices.Index(m.bought, n.offer)
		m.bought = slices.Delete(m.bought, at, at+1)
	}
	p.Nodes = kept
}

// finish removes nodes without pods and computes the totals. It is called once, after the last
// purchase.
func (m *maker) finish() {
	p := m.plan
	m.dropEmpty()
	m.fillGroups()
	for i := range p.Nodes {
		n := &p.Nodes[i]
		of := m.w.Cluster().Node(n.Name)
		n.Pods = podsOf(of)
		n.CPU, n.Memory = percent(of.Requested.MilliCPU, of.Size.MilliCPU), percent(of.Requested.Memory, of.Size.Memory)
	}

	slices.SortStableFunc(p.Nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Zone, b.Zone),
			cmp.Compare(a.CapacityType, b.CapacityType))
	})

	for _, n := range p.Nodes {
		p.Hour += n.Price
		p.Pods += len(n.Pods)
	}

	p.Month = p.Hour * hoursOfMonth
	for _, f := range m.w.Each() {
		if f.Pod != nil && f.Pod.NodeName == "" {
			name := simulate.Name{Namespace: f.Object.Namespace, Name: f.Object.Name}
			// Use the first known reason, in this order: the plan's (an unsuitable catalog, or the
			// limits of pools), admission's, a gate's, and the scheduler's.
			p.Pending = append(p.Pending, Waiting{name.Namespace, name.Name, cmp.Or(m.why[name], f.Refused, m.w.Gate(f.Pod), f.Message)})
		}
	}
	m.bound()
}

// bound computes a lower bound on the cost of nodes for the pods on the new nodes. It ignores
// limits, weights and choices made in advance, which restrict only plans.
//
// It covers only pods on nodes of the plan, because pods that cannot run cost nothing. Constraints
// ignored by the bound make it lower, but not invalid: the plan may be closer to the optimum than
// reported.
func (m *maker) bound() {
	var pods []*cluster.Pod // the pods that are actually on the nodes, not the planned ones
	for _, n := range m.plan.Nodes {
		pods = append(pods, m.w.Cluster().Node(n.Name).Pods...)
	}
	p := m.plan
	problem, at := m.boundProblem(pods)
	if len(problem.Items) == 0 {
		return
	}

	// Rounding errors must not raise the bound above the cost.
	p.Least = min(packing.Bound(problem), p.Hour)
	if p.Least > 0 {
		p.Above = math.Round(10000*(p.Hour/p.Least-1)) / 100
	}
	unknown := slices.ContainsFunc(pods, func(pod *cluster.Pod) bool {
		g := m.w.GroupOf(pod)
		return at[m.free[pod.UID()]] > 0 && (len(pod.Class.RequiredAffinity) > 0 || g != nil && g.TopologyKey() != "" ||
			slices.ContainsFunc(pod.Class.Spec.TopologySpreadConstraints,
				func(c v1.TopologySpreadConstraint) bool { return c.WhenUnsatisfiable == v1.DoNotSchedule }))
	})
	if unknown && !p.best() {
		p.Notes = append(p.Notes, "the lower bound ignores spread constraints, pod affinity and domains of pod groups, which some of "+
			"these pods have: the plan may be closer to the optimum")
	}
}

// boundProblem returns the packing that bounds the cost of nodes for these pods, and the number of
// each input's item, counted from 1. It skips DaemonSet pods, and pods that were not pending when
// the plan began.
func (m *maker) boundProblem(pods []*cluster.Pod) (problem *packing.Problem, at map[*free]int) {
	problem, at = &packing.Problem{}, map[*free]int{}
	groups := map[string]int{}
	for i, o := range m.c.Offers[:len(m.rooms)] {
		problem.Bins = append(problem.Bins, packing.Bin{Room: m.rooms[i], Price: o.Price})
	}

	for _, pod := range pods {
		f := m.free[pod.UID()]
		if f == nil {
			continue
		}
		if at[f] == 0 {
			problem.Items = append(problem.Items, packing.Item{Size: f.size, Bins: f.bins})
			at[f] = len(problem.Items)
			for _, key := range f.apart {
				problem.Separate(at[f]-1, key, groups)
			}
		}
		problem.Items[at[f]-1].Count++
	}
	return problem, at
}

// percent returns a share in percent, to one decimal; 0 of nothing.
func percent(part, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(int64(1000*float64(part)/float64(of)+0.5)) / 10
}

// Scored is the outcome on the nodes of a plan if the scheduler chooses among them by its scores,
// in the order of its queue, instead of following the plan.
//
// A plan fits pods tightly and dictates each pod's node. A scheduler that chooses by scores, with
// defaults that spread pods, may leave large pods without room. Scored quantifies the resulting
// cost.
type Scored struct {
	// Pending is the number of pods that new nodes could help but that stay pending.
	Pending int `json:"pending"`
	// Nodes lists the nodes to buy for these pods in addition to the plan's nodes, and Hour is
	// their cost.
	Nodes []Node  `json:"nodes"`
	Hour  float64 `json:"costPerHour"`
	// Left lists the pods with a node in the plan that stay pending even with these additional
	// nodes.
	Left []Waiting `json:"left"`
}

// Score adds the plan's nodes to a world equal to the plan's initial world, lets the scheduler
// place all pods, and buys nodes for the remaining ones. It sets p.Scored, and does not change the
// rest of the plan.
func (p *Plan) Score(w *simulate.World, o Options) error {
	m := newMaker(w, p.catalog, o)
	m.scored = true
	for _, n := range p.Nodes {
		m.bought, m.named[n.Name] = append(m.bought, n.offer), true
	}
	if err := p.catalog.add(w, p.Nodes); err != nil {
		return err
	}

	// Pods that are also pending in the plan are not attributed to the scores.
	before := map[simulate.Name]bool{}
	for _, waiting := range p.Pending {
		before[simulate.Name{Namespace: waiting.Namespace, Name: waiting.Name}] = true
	}
	scored := &Scored{Nodes: []Node{}, Left: []Waiting{}}
	for _, pod := range m.pending() {
		if !before[simulate.Name{Namespace: pod.Namespace(), Name: pod.Name()}] {
			scored.Pending++
		}
	}

	if scored.Pending > 0 {
		more, err := m.make()
		if err != nil {
			return err
		}
		scored.Nodes, scored.Hour = more.Nodes, more.Hour
		for _, waiting := range more.Pending {
			if !before[simulate.Name{Namespace: waiting.Namespace, Name: waiting.Name}] {
				scored.Left = append(scored.Left, waiting)
			}
		}
	}

	p.Scored = scored
	return w.Err()
}

// PoolCost is the hourly cost of the nodes with a known price of a NodePool. Least is its share of
// a lower bound on the cost of nodes of the catalog for the pods on all such nodes.
type PoolCost struct {
	Hour  float64 `json:"costPerHour"`
	Least float64 `json:"leastPerHour"`
}

// poolCosts computes the costs by NodePool. It closes all nodes, and empties the nodes with a known
// price by force, so that their pods are pending. The world is unusable afterwards.
//
// The bound on the cost of nodes of the catalog also holds for the existing nodes if none of these
// costs less than in the catalog.
func (r *replacer) poolCosts(w *simulate.World) error {
	poolOf, departed, bounded := map[string]*PoolCost{}, len(w.Departures()), len(r.p.Nodes) == 0
	var names []string
	for _, n := range w.Nodes() {
		old := r.old[n.Name]
		bounded = bounded && slices.ContainsFunc(r.p.catalog.Offers, func(o Offer) bool { return old != nil && o.sells(n) && o.Price <= old.price+tiny })
		if old == nil {
			w.ChangeNode(n.Name, func(n *v1.Node) { n.Spec.Unschedulable = true })
			continue
		}
		names = append(names, n.Name)
		name := n.Labels[nodePoolLabel]
		if r.out.Pools[name] == nil {
			r.out.Pools[name] = &PoolCost{}
		}
		r.out.Pools[name].Hour += old.price
		poolOf[n.Name] = r.out.Pools[name]
	}
	lose(w, names)

	cameFrom := map[simulate.Name]*PoolCost{}
	for _, d := range w.Departures()[departed:] {
		if next, _, _, ok := d.Next(); ok && poolOf[d.Node] != nil {
			cameFrom[next] = poolOf[d.Node]
		}
	}
	of := func(p *cluster.Pod) *PoolCost {
		return cameFrom[simulate.Name{Namespace: p.Namespace(), Name: p.Name()}]
	}
	m := newMaker(w, r.p.catalog, Options{})
	pods := slices.DeleteFunc(m.pending(), func(p *cluster.Pod) bool { return of(p) == nil })
	m.read(pods)
	problem, at := m.boundProblem(pods)
	shares := append([]float64{0}, packing.Shares(problem)...) // items count from 1
	for _, p := range pods {
		of(p).Least += shares[at[m.free[p.UID()]]]
		if bounded {
			r.out.Least = min(r.out.Least+shares[at[m.free[p.UID()]]], r.out.Before)
		}
	}
	return w.Err()
}
