// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

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

// Options configure planning. The zero value does not bound spot capacity, and uses the seed 0. The
// same seed gives the same plan.
type Options struct {
	// Seed determines random choices of the packing; see [packing.Options].
	Seed uint64
	// Spot, if set, is the maximum share of spot capacity in the CPU of all nodes afterwards: from
	// 0 to 1.
	Spot *float64
	// MaxMoves, if not 0, limits the number of pods that leave replaced nodes.
	MaxMoves int
	// MinSavings is the least amount that an exchange must save per hour.
	MinSavings float64
	// Horizon is the time in which an exchange must save more than its moves cost; 0 means
	// [DefaultHorizon].
	Horizon time.Duration
	// Headroom is the share of the replicas of each workload for which replaced nodes leave room.
	Headroom float64
	// TimeIsUp, if set, reports whether the search for nodes to replace must end with the best plan
	// so far.
	TimeIsUp func() bool
	// Stay holds nodes that must stay, with the reason.
	Stay map[string]string
	// Progress, if set, receives progress messages.
	Progress func(words string)

	// leaving holds removed nodes that exist until the plan is carried out. They count for the
	// limits, but not for the share of spot.
	leaving map[string]*v1.Node
}

// hoursOfMonth is the number of hours in the clouds' billing month: 365 days of 24 hours, divided
// by 12.
const hoursOfMonth = 730

// Plan lists the nodes to buy. It is also part of the document printed by berth what-if as JSON and
// YAML.
type Plan struct {
	// Nodes are the new nodes, sorted by pool, type and zone.
	Nodes []Node `json:"nodes"`
	// Hour and Month are the total cost of Nodes.
	Hour  float64 `json:"costPerHour"`
	Month float64 `json:"costPerMonth"`
	// Least is a lower bound on the hourly cost of nodes for these pods. Above is the excess of
	// Hour over it in percent, and so the maximum distance from the optimum.
	Least float64 `json:"leastPerHour"`
	Above float64 `json:"atMostPercentAbove"`
	// Pods is the number of pods on the new nodes.
	Pods int `json:"pods"`
	// Pending lists the pods that stay pending, with the reason.
	Pending []Waiting `json:"pending"`
	Notes   []string  `json:"notes,omitempty"`
	// Spot is the amount of spot capacity, if its share is bounded.
	Spot *Spot `json:"spot,omitempty"`
	// Scored, if requested, is the outcome for a scheduler that chooses among the nodes by its
	// scores.
	Scored *Scored `json:"scored,omitempty"`
	// Replaced lists the existing nodes that could be removed or exchanged, if requested.
	Replaced *Replaced `json:"replaced,omitempty"`

	catalog *Catalog
}

// mostRounds limits the number of rounds of purchases. The first round is for all pods, and later
// rounds are for pods that the packing misjudged. A later round that helps no pod ends the
// planning.
const mostRounds = 20

// Make plans nodes for the pending pods of the world. It adds the nodes to the world, and lets the
// scheduler place the pods there.
//
// The world is a simulation: Make neither buys anything nor writes to a cluster. A plan that helps
// no pod is not an error.
func Make(w *simulate.World, c *Catalog, o Options) (*Plan, error) {
	if err := c.complete(w.Manifests().ForPlans); err != nil {
		return nil, err
	}
	return newMaker(w, c, o).make()
}

// newMaker returns a maker without nodes. The catalog is shared and not modified.
func newMaker(w *simulate.World, c *Catalog, o Options) *maker {
	return &maker{w: w, c: c, o: o, named: map[string]bool{},
		plan: &Plan{Nodes: []Node{}, Pending: []Waiting{}, catalog: c, Notes: slices.Clone(c.Notes)}}
}

// make makes the plan. It first places pods on existing nodes, because the plan buys nodes only for
// the remaining pods.
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

	m.finish()
	// Check the share of spot only now, because finish has dropped nodes without pods. An exceeded
	// share is a bug in this package, not a plan.
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
		m.o.say("round %d: nodes for %d pods", m.rounds, len(pods))
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

// among returns the pending pods. While spot is excluded, it returns only the given ones among
// them.
func (m *maker) among(pods []*cluster.Pod) []*cluster.Pod {
	of := make(map[types.UID]bool, len(pods))
	for _, p := range pods {
		of[p.UID()] = true
	}
	return slices.DeleteFunc(m.pending(), func(p *cluster.Pod) bool { return m.steady && !of[p.UID()] })
}

// maker makes a plan.
//
// The world is the source of truth for the pending pods and the places of all other pods. The maker
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
	// first is the number of pods in the largest demand so far; see effort.
	first  int
	bought []int // index of each bought node's offer, in the order of the nodes
	// number counts the new nodes by pool, for their names; named holds the names of all bought
	// nodes.
	number map[string]int
	named  map[string]bool
	// free holds each pod's input to the bound, and rooms holds the room of each offer. Both are
	// from the first reading.
	free  map[types.UID]*free
	rooms [][]int64
	// why explains in the plan's words why a pod could not be helped. For other pods, the engine's
	// message is used.
	why map[simulate.Name]string
}

// Within makes the search for nodes to replace end after a time.
func (o *Options) Within(limit time.Duration) {
	began := sync.OnceValue(time.Now) // when the search first asks
	o.TimeIsUp = func() bool { return time.Since(began()) > limit }
}

// timeIsUp reports whether the search must end.
func (o *Options) timeIsUp() bool { return o.TimeIsUp != nil && o.TimeIsUp() }

// say reports progress, if Progress is set.
func (o *Options) say(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// pending returns the pods that new nodes might help: they may be tried, and do not belong to a
// DaemonSet.
func (m *maker) pending() (pods []*cluster.Pod) {
	for _, f := range m.w.Each() {
		if f.Pod == nil || f.Pod.NodeName != "" || f.Refused != "" || m.w.Gate(f.Pod) != "" {
			continue
		}
		// A DaemonSet's pod is bound to its node. On a new node, measure reserves room for it.
		if rules.ControllerKind(f.Object) == rules.DaemonSet {
			continue
		}
		pods = append(pods, f.Pod)
	}
	return pods
}

// buy buys nodes for the pods, and lets the scheduler try them. It returns false if nothing can be
// bought, or after an error.
//
// The order matters: pods are evaluated while a trial node of each kind is in the cluster; the
// packing uses only numbers; then the chosen nodes are applied, and the scheduler tries each pod on
// its planned node.
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

	// From here on each pod has a planned node.
	planned := d.assign(solution, nodes)
	m.o.say("round %d: trying %d pods on %d nodes", m.rounds, len(planned), len(made))
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

// read converts the pods to numbers. It evaluates them while a trial node of each kind is in the
// cluster. The first reading covers all pods, and is kept for the bound.
func (m *maker) read(pods []*cluster.Pod) *demand {
	d := &demand{world: m.w, offers: m.c.Offers, cautious: m.rounds > 1, limit: m.limit, steady: m.steady, spotLimited: m.o.Spot != nil}
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

// limit sets a problem's limits: the remaining numbers of limited offers, and the remainders of the
// limits of pools. It subtracts all purchases and, in addition, also[i] nodes of each offer i.
//
// A pool's limit includes its existing nodes: with cpu: 100 and 40 CPUs in use, 60 remain.
//
//	Offer.Most 5, 2 existing nodes, 1 bought: Most 2 remains for the problem
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
		for _, name := range slices.Sorted(maps.Keys(pool.Limits)) {
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
	for _, n := range m.standingNodes() {
		if n.Labels[nodePoolLabel] != pool.Name {
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

// standingNodes lists the nodes that exist while the plan is carried out, without the new ones.
func (m *maker) standingNodes() []*v1.Node {
	list := slices.DeleteFunc(m.w.Nodes(), func(n *v1.Node) bool { return m.isNew(n.Name) || m.o.leaving[n.Name] != nil })
	return slices.AppendSeq(list, maps.Values(m.o.leaving))
}

// amountOf returns a quantity as an integer: CPU in thousandths, everything else in units, like
// cluster.Resources.
func amountOf(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// helpless records why pods cannot be helped.
func (m *maker) helpless(d *demand, s *packing.Solution) {
	if m.why == nil {
		m.why = map[simulate.Name]string{}
	}
	for _, h := range d.helpless {
		m.why[simulate.Name{Namespace: h.Namespace, Name: h.Name}] = h.Message
	}
	// The pods of an item are equivalent. The first ones get the places, so the last ones remain.
	for i, n := range s.Left {
		for _, p := range d.items[i].pods[len(d.items[i].pods)-n:] {
			m.why[simulate.Name{Namespace: p.Namespace(), Name: p.Name()}] = "the limits of the node pools are reached"
		}
	}
}
