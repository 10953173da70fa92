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

// Options are how to plan. The zero value is a plan without a bound on spot capacity, and with the
// seed 0. The same seed gives the same plan.
type Options struct {
	// Seed is for what the packing leaves to chance; see [packing.Options].
	Seed uint64
	// Spot, if set, is the largest share of the CPU of all nodes that spot capacity may have
	// afterwards: from 0 to 1.
	Spot *float64
	// Progress, if set, is told what goes on.
	Progress func(words string)

	leaving map[string]bool // nodes that will be gone, and do not count to the share of spot
}

// hoursOfMonth are those by which the clouds count: 365 days of 24 hours, divided by 12.
const hoursOfMonth = 730

// Plan is which nodes to buy. It is also part of the document that berth what-if prints as JSON and
// YAML.
type Plan struct {
	// Nodes are the new nodes, by pool, type and zone.
	Nodes []Node `json:"nodes"`
	// Hour and Month are what they cost.
	Hour  float64 `json:"costPerHour"`
	Month float64 `json:"costPerMonth"`
	// Least is a cost an hour below which no nodes of the catalog take these pods, and Above how
	// far the plan is above it at most, in percent.
	Least float64 `json:"leastPerHour"`
	Above float64 `json:"atMostPercentAbove"`
	// Pods is how many pods the new nodes take.
	Pods int `json:"pods"`
	// Pending are the pods that stay pending, and why.
	Pending []Waiting `json:"pending"`
	Notes   []string  `json:"notes,omitempty"`
	// Spot is how much spot capacity there is, if its share is bounded.
	Spot *Spot `json:"spot,omitempty"`
	// Scored is what happens where the scheduler chooses among the nodes by its scores, if that was
	// asked.
	Scored *Scored `json:"scored,omitempty"`
	// Replaced is which nodes that there are could go or be exchanged, if that was asked.
	Replaced *Replaced `json:"replaced,omitempty"`

	catalog *Catalog
}

// mostRounds is how often nodes are bought for what is left. The first time is for all pods, the
// others for what numbers do not know. A round that helps no pod ends it earlier.
const mostRounds = 20

// Make plans nodes for the pods that are pending in the world. It adds them to the world, and the
// pods to the nodes.
//
// The world is one that simulates: nothing is bought, and nothing is written to a cluster. Errors
// are those of the world; a plan that helps no pod is none.
func Make(w *simulate.World, c *Catalog, o Options) (*Plan, error) {
	return newMaker(w, c, o).make()
}

// newMaker returns a maker without nodes. The catalog is shared and not changed.
func newMaker(w *simulate.World, c *Catalog, o Options) *maker {
	return &maker{w: w, c: c, o: o, named: map[string]bool{},
		plan: &Plan{Nodes: []Node{}, Pending: []Waiting{}, catalog: c, Notes: slices.Clone(c.Notes)}}
}

// make plans. What the existing nodes take is placed first, since a plan buys only for what is left
// then.
func (m *maker) make() (*Plan, error) {
	// A world without nodes places nothing, and trying thousands of pods in vain would cost time.
	if !m.w.Barren() {
		m.w.Settle()
	}
	if pods := m.pending(); m.o.Spot != nil && len(pods) > 0 {
		m.buyInShares(pods)
	}
	m.buyFor(m.pending())
	m.w.Settle() // what no node was bought for may not have been tried
	if err := m.w.Err(); err != nil {
		return nil, err
	}

	// It drops nodes that got no pod, so the share of spot is looked at after it.
	m.finish()
	// What was bought is counted once more at the end: a share that is exceeded is a fault of this
	// package, not a plan.
	if err := m.proveSpot(); err != nil {
		return nil, err
	}
	return m.plan, m.w.Err()
}

// buyFor buys nodes for the pods, and for those of them that are left then, until none is or it
// helps no more. After a first round that helps no pod, pods that spread over nodes are kept apart,
// which may help; a later one is the last.
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

// among are those of the pods that are still pending, while no spot is bought; later all that are
// pending.
func (m *maker) among(pods []*cluster.Pod) []*cluster.Pod {
	of := make(map[types.UID]bool, len(pods))
	for _, p := range pods {
		of[p.UID] = true
	}
	return slices.DeleteFunc(m.pending(), func(p *cluster.Pod) bool { return m.steady && !of[p.UID] })
}

// maker makes a plan.
//
// The world tells what is true: which pods are pending, and where the others are. The maker keeps
// only what the world does not know: what was bought, and why pods could not be helped.
type maker struct {
	// scored is set if the scheduler chooses the node of each pod by its scores.
	scored bool
	// steady is set while no spot is bought.
	steady bool
	w      *simulate.World
	c      *Catalog
	o      Options
	plan   *Plan
	rounds int
	// first is set by the largest demand so far, which effort compares with.
	first  int   // how many pods the first round had
	bought []int // by offer, in the order of the nodes
	// number counts the new nodes by pool, for their names; named has the names of all that were
	// bought.
	number map[string]int
	named  map[string]bool
	// free is what a pod is to the bound, and rooms what offers have for it: as first read.
	free  map[types.UID]*free
	rooms [][]int64
	// why says what keeps a pod from being helped, in the words of the plan. A pod that is not in
	// it has the engine's words.
	why map[simulate.Name]string
}

// say reports progress, if Options.Progress is set.
func (m *maker) say(format string, args ...any) {
	if m.o.Progress != nil {
		m.o.Progress(fmt.Sprintf(format, args...))
	}
}

// pending are the pods that new nodes might help: they may be tried, and are not of a DaemonSet,
// which has its own nodes.
func (m *maker) pending() (pods []*cluster.Pod) {
	for _, f := range m.w.Each() {
		if f.Pod == nil || f.Pod.NodeName != "" || f.Refused != "" || m.w.Gate(f.Pod) != "" {
			continue
		}
		// Each new node gets its own pod of the DaemonSet, which read has counted.
		if rules.ControllerKind(f.Object) == rules.DaemonSet {
			continue
		}
		pods = append(pods, f.Pod)
	}
	return pods
}

// buy buys nodes for the pods, and has the scheduler try them. It returns false if there is nothing
// to buy.
//
// The order matters: offers are told apart and measured while a node of each kind is in the
// cluster; the packing works on numbers alone; then the nodes it chose are applied, and the
// scheduler tries each pod on the node that the packing meant for it.
func (m *maker) buy(pods []*cluster.Pod) bool {
	d := m.read(pods)
	m.limit(d.problem, nil)
	known := m.w.Introduce()
	solution := packing.Solve(d.problem, packing.Options{Seed: m.o.Seed, Rounds: m.effort(len(pods))})
	known()
	m.helpless(d, solution)
	// Kept pods need no new node, but they have to be tried where they were meant to go.
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
	// The world keeps its error, which make returns.
	if _, err := m.w.Apply(manifest.Assemble("the catalog", made)); err != nil {
		return false
	}

	// There the scheduler chooses, so the plan for each pod is not told to it.
	if m.scored {
		m.w.Settle()
		return m.w.Err() == nil
	}
	return m.w.SettleAt(planned) == nil
}

// effort is how often the packing tries again for so many pods. What is left after the first time
// costs little of the whole, and gets that share of its tries.
func (m *maker) effort(pods int) int {
	const least = 24
	if m.first = max(m.first, pods); pods == m.first {
		return packing.Rounds
	}
	return max(packing.Rounds*pods/m.first, least)
}

// read makes numbers of the pods, while a node of each kind is in the cluster. The first reading is
// about all pods, and is kept for the bound.
func (m *maker) read(pods []*cluster.Pod) *demand {
	d := &demand{world: m.w, offers: m.c.Offers, cautious: m.rounds > 1, limit: m.limit, steady: m.steady}
	keys := told(m.w, pods)
	// Spot and other capacity must not be of one kind, even if no pod tells them apart.
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

// limit tells a problem what is left of the limits of pools, and of offers of which there are few,
// beside what was bought and also so many of each offer.
//
// A limit of a pool holds for its existing nodes, too: with cpu: 100 and 40 CPUs there, 60 are
// left.
//
//	Offer.Most 5, 2 there before, 1 bought: Most 2 is left for the problem
func (m *maker) limit(p *packing.Problem, also []int) {
	used := make([]int, len(m.c.Offers))
	copy(used, also)
	for _, offer := range m.bought {
		used[offer]++
	}

	for i, o := range m.c.Offers {
		if o.Most > 0 {
			if p.Bins[i].Most = o.Most - used[i] - m.there(i); p.Bins[i].Most <= 0 {
				// To the packing, Most 0 means any number, so none has to be said by a limit.
				p.Limits = append(p.Limits, packing.Limit{Costs: map[int]int64{i: 1}, Most: 0})
			}
		}
	}

	for at := range m.c.Pools {
		// Existing nodes, bought ones and those of the problem share one limit: what is left after
		// the first two bounds the third.
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

// left is what the nodes that the world began with leave of a pool's limit. It may be below zero,
// if the pool has been made smaller than it is.
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

// amountOf returns a quantity as an integer: CPU in thousandths, everything else in units, as
// cluster.Resources counts.
func amountOf(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// helpless keeps why pods cannot be helped. Which of the pods of an item go without is arbitrary:
// they are alike.
func (m *maker) helpless(d *demand, s *packing.Solution) {
	if m.why == nil {
		m.why = map[simulate.Name]string{}
	}
	for _, h := range d.helpless {
		m.why[simulate.Name{Namespace: h.Namespace, Name: h.Name}] = h.Message
	}
	// The last pods of an item are those that are left: the first have the places.
	for i, n := range s.Left {
		for _, p := range d.items[i].pods[len(d.items[i].pods)-n:] {
			m.why[simulate.Name{Namespace: p.Namespace(), Name: p.Name}] = "the limits of the node pools are reached"
		}
	}
}
