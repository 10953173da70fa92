// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Options configure planning. The zero value is a plan without a bound on spot capacity, with seed
// 0. The same seed gives the same plan.
type Options struct {
	// Seed determines random choices of the packing; see [packing.Options].
	Seed uint64
	// Spot, if set, is the maximum share of spot capacity in the CPU of all nodes afterwards: from
	// 0 to 1.
	Spot *float64
	// Progress, if set, receives progress messages.
	Progress func(words string)

	leaving map[string]bool // nodes that will be removed, and do not count for the share of spot
}

// hoursOfMonth is the number of hours in the clouds' billing month: 365 days of 24 hours, divided
// by 12.
const hoursOfMonth = 730

// Plan lists the nodes to buy. It is also part of the document printed by berth what-if as JSON and
// YAML.
type Plan struct {
	// Nodes are the new nodes, by pool, type and zone.
	Nodes []Node `json:"nodes"`
	// Hour and Month are their cost.
	Hour  float64 `json:"costPerHour"`
	Month float64 `json:"costPerMonth"`
	// Least is a lower bound on the hourly cost of nodes for these pods, and Above the maximum
	// distance of the plan from it, in percent.
	Least float64 `json:"leastPerHour"`
	Above float64 `json:"atMostPercentAbove"`
	// Pods is the number of pods on the new nodes.
	Pods int `json:"pods"`
	// Pending lists the pods that stay pending, with the reason.
	Pending []Waiting `json:"pending"`
	Notes   []string  `json:"notes,omitempty"`
	// Spot is the amount of spot capacity, if its share is bounded.
	Spot *Spot `json:"spot,omitempty"`
	// Scored is the outcome if the scheduler chooses among the nodes by its scores, if requested.
	Scored *Scored `json:"scored,omitempty"`
	// Replaced lists the existing nodes that could be removed or exchanged, if requested.
	Replaced *Replaced `json:"replaced,omitempty"`

	catalog *Catalog
}

// mostRounds limits the number of purchases. The first purchase is for all pods, and later
// purchases are for pods the packing misjudged. A round that helps no pod ends the planning
// earlier.
const mostRounds = 20

// Make plans nodes for the pending pods of the world. It adds them to the world, and the pods to
// the nodes.
//
// The world is a simulation: Make neither buys anything nor writes to a cluster. Errors are the
// world's; a plan that helps no pod is valid.
func Make(w *simulate.World, c *Catalog, o Options) (*Plan, error) {
	if err := c.complete(w.NodePools()); err != nil {
		return nil, err
	}
	return newMaker(w, c, o).make()
}

// newMaker returns a maker without nodes. The catalog is shared and not modified.
func newMaker(w *simulate.World, c *Catalog, o Options) *maker {
	return &maker{w: w, c: c, o: o, named: map[string]bool{},
		plan: &Plan{Nodes: []Node{}, Pending: []Waiting{}, catalog: c, Notes: slices.Clone(c.Notes)}}
}

// make plans. It first places pods on existing nodes, since a plan buys only for the remaining
// ones.
func (m *maker) make() (*Plan, error) {
	// A world without nodes places nothing, and trying thousands of pods in vain would cost time.
	if !m.w.Barren() {
		m.w.Settle()
	}
	if pods := m.pending(); m.o.Spot != nil && len(pods) > 0 {
		m.buyInShares(pods)
	}
	m.buyFor(m.pending())
	m.w.Settle() // tries the pods for which no node was bought
	if err := m.w.Err(); err != nil {
		return nil, err
	}

	// finish drops nodes without pods, so check the share of spot after it.
	m.finish()
	// Check the purchases once more at the end: an exceeded share is a bug in this package, not a
	// plan.
	if err := m.proveSpot(); err != nil {
		return nil, err
	}
	return m.plan, m.w.Err()
}

// buyFor repeatedly buys nodes for the remaining pods, until none remain or a round helps no pod.
// If the first round helps no pod, one more round keeps spreading pods apart by node, which may
// help.
func (m *maker) buyFor(pods []*cluster.Pod) {
	for round := range mostRounds {
		if len(pods) == 0 {
			return
		}
		m.rounds++
		m.say("round %d: nodes for %d pods", m.rounds, len(pods))
		if !m.buy(pods) || m.w.Err() != nil {
			return
		}

		left := m.among(pods)
		if len(left) >= len(pods) && round > 0 {
			return
		}
		pods = left
	}
}

// among returns the given pods that are still pending while spot is excluded. Later it returns all
// pending pods.
func (m *maker) among(pods []*cluster.Pod) []*cluster.Pod {
	of := make(map[types.UID]bool, len(pods))
	for _, p := range pods {
		of[p.UID] = true
	}
	return slices.DeleteFunc(m.pending(), func(p *cluster.Pod) bool { return m.steady && !of[p.UID] })
}

// maker makes a plan.
//
// The world is the source of truth: the pending pods, and the places of all other pods. The maker
// holds only additional state: the purchases, and the reasons pods could not be helped.
type maker struct {
	// scored is set if the scheduler chooses the node of each pod by its scores.
	scored bool
	// steady is set while spot is excluded.
	steady bool
	w      *simulate.World
	c      *Catalog
	o      Options
	plan   *Plan
	rounds int
	// first is the number of pods in the largest demand so far, the reference for effort.
	first  int
	bought []int // index of each bought node's offer, in the order of the nodes
	// number counts the new nodes by pool, for their names; named holds the names of all bought
	// nodes.
	number map[string]int
	named  map[string]bool
	// free is each pod's input to the bound, and rooms the offers' room, both from the first
	// reading.
	free  map[types.UID]*free
	rooms [][]int64
	// why explains in the plan's words why a pod could not be helped. For other pods, the engine's
	// message is used.
	why map[simulate.Name]string
}

// say reports progress, if Options.Progress is set.
func (m *maker) say(format string, args ...any) {
	if m.o.Progress != nil {
		m.o.Progress(fmt.Sprintf(format, args...))
	}
}

// pending returns the pods that new nodes might help: they may be tried, and do not belong to a
// DaemonSet, which has separate nodes.
func (m *maker) pending() (pods []*cluster.Pod) {
	for _, f := range m.w.Each() {
		if f.Pod == nil || f.Pod.NodeName != "" || f.Refused != "" || m.w.Gate(f.Pod) != "" {
			continue
		}
		// Each new node gets its pod of the DaemonSet, already counted by read.
		if rules.ControllerKind(f.Object) == rules.DaemonSet {
			continue
		}
		pods = append(pods, f.Pod)
	}
	return pods
}

// buy buys nodes for the pods, and lets the scheduler try them. It returns false if there is no
// node to buy.
//
// The order matters: offers are classified and measured while a node of each kind is in the
// cluster; the packing uses only numbers; then the chosen nodes are applied, and the scheduler
// tries each pod on its planned node.
func (m *maker) buy(pods []*cluster.Pod) bool {
	d := m.read(pods)
	m.limit(d.problem, nil)
	known := m.w.Introduce()
	solution := packing.Solve(d.problem, packing.Options{Seed: m.o.Seed, Rounds: m.effort(len(pods))})
	known()
	m.helpless(d, solution)
	// Kept pods need no new node, but must be tried on their planned nodes.
	if len(solution.Bins)+len(d.kept) == 0 {
		return false
	}

	var made []metav1.Object
	var nodes []*v1.Node
	for _, b := range solution.Bins {
		node := m.node(b.Bin)
		made, nodes = append(made, node), append(nodes, node)
	}

	// From here on nodes have names, and pods have nodes.
	planned := d.assign(solution, nodes)
	m.say("round %d: trying %d pods on %d nodes", m.rounds, len(planned), len(made))
	// The world records its error, and make returns it.
	if _, err := m.w.Apply(manifest.Assemble("the catalog", made)); err != nil {
		return false
	}

	// The scheduler chooses the node in this case, so do not pass on the planned node of each pod.
	if m.scored {
		m.w.Settle()
		return m.w.Err() == nil
	}
	return m.w.SettleAt(planned) == nil
}

// effort returns the number of attempts of the packing for the given number of pods. The pods
// remaining after the first round cost little of the total and get a proportional number of
// attempts.
func (m *maker) effort(pods int) int {
	const least = 24
	if m.first = max(m.first, pods); pods == m.first {
		return packing.Rounds
	}
	return max(packing.Rounds*pods/m.first, least)
}

// read converts the pods to numbers, while a node of each kind is in the cluster. The first reading
// covers all pods, and is kept for the bound.
func (m *maker) read(pods []*cluster.Pod) *demand {
	d := &demand{world: m.w, offers: m.c.Offers, cautious: m.rounds > 1, limit: m.limit, steady: m.steady}
	keys := distinguishingKeys(m.w, pods)
	// Spot and other capacity must not be of one kind, even if no pod distinguishes them.
	if m.o.Spot != nil {
		for key := range spotLabels {
			keys[key] = true
		}
	}
	d.sort(m.c, keys)
	d.measure(pods)
	over := d.suppose()
	defer over()
	d.group(pods)
	if m.free == nil {
		m.free, m.rooms = d.free, d.rooms
	}
	return d
}

// limit sets a problem's limits: the remainder of the limits of pools and of offers in limited
// number, after all purchases and additionally also[i] nodes of offer i.
//
// A pool's limit includes its existing nodes: with cpu: 100 and 40 CPUs in use, 60 remain.
//
//	Offer.Most 5, 2 there before, 1 bought: Most 2 remains for the problem
func (m *maker) limit(p *packing.Problem, also []int) {
	used := make([]int, len(m.c.Offers))
	copy(used, also)
	for _, offer := range m.bought {
		used[offer]++
	}

	for i, o := range m.c.Offers {
		if o.Most > 0 {
			if p.Bins[i].Most = o.Most - used[i] - m.there(i); p.Bins[i].Most <= 0 {
				// To the packing, Most 0 means unlimited, so a limit must express zero.
				p.Limits = append(p.Limits, packing.Limit{Costs: map[int]int64{i: 1}, Most: 0})
			}
		}
	}

	for at := range m.c.Pools {
		// The limit is shared by existing nodes, bought nodes and the nodes of the problem: the
		// first two reduce the limit of the problem.
		pool := &m.c.Pools[at]
		for _, name := range pool.limitsOf() {
			limit := packing.Limit{Costs: map[int]int64{}, Most: m.left(pool, name)}
			for i, o := range m.c.Offers {
				if o.pool == at {
					amount := int64(1)
					if name != "nodes" {
						q := o.Node.Status.Capacity[name]
						amount = amountOf(name, q)
					}
					limit.Costs[i] = amount
					limit.Most -= amount * int64(used[i])
				}
			}
			p.Limits = append(p.Limits, limit)
		}
	}
	m.limitSpot(p, also)
}

// left returns the remainder of a pool's limit after the world's initial nodes. It may be negative,
// if the limit was lowered below current usage.
func (m *maker) left(pool *Pool, name v1.ResourceName) int64 {
	left := amountOf(name, pool.Limits[name])
	for _, n := range m.w.Nodes() {
		if n.Labels[nodePoolLabel] != pool.Name || m.isNew(n.Name) {
			continue
		}
		if name == "nodes" {
			left--
		} else {
			left -= amountOf(name, n.Status.Capacity[name])
		}
	}
	return left
}

// amountOf returns a quantity as an integer: CPU in thousandths, everything else in units, like
// cluster.Resources.
func amountOf(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// helpless records why pods cannot be helped. It chooses arbitrarily among the pods of an item,
// because they are equivalent.
func (m *maker) helpless(d *demand, s *packing.Solution) {
	if m.why == nil {
		m.why = map[simulate.Name]string{}
	}
	for _, h := range d.helpless {
		m.why[simulate.Name{Namespace: h.Namespace, Name: h.Name}] = h.Message
	}
	// The first pods of an item have the places, so the last ones remain.
	for i, n := range s.Left {
		for _, p := range d.items[i].pods[len(d.items[i].pods)-n:] {
			m.why[simulate.Name{Namespace: p.Namespace(), Name: p.Name}] = "the limits of the node pools are reached"
		}
	}
}
