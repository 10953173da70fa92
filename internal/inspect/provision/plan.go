package provision

import (
	"fmt"
	"slices"
	"strings"

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

// Options are how to plan.
type Options struct {
	Seed uint64
	// Spot, if set, is the largest share of the CPU of all nodes that spot capacity may have
	// afterwards: from 0 to 1.
	Spot *float64
	// Progress, if set, is told what goes on.
	Progress func(words string)

	leaving map[string]bool // nodes that will be gone, and do not count to the share of spot
}

// hoursOfMonth are those by which the clouds count.
const hoursOfMonth = 730

// Plan is which nodes to buy.
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

// Node is a node to be bought.
type Node struct {
	Name         string  `json:"name"`
	Pool         string  `json:"pool"`
	Type         string  `json:"type"`
	Zone         string  `json:"zone,omitempty"`
	CapacityType string  `json:"capacityType,omitempty"`
	Price        float64 `json:"pricePerHour"`
	// Pods are those that go there, as namespace/name. Those of DaemonSets are not listed.
	Pods []string `json:"pods"`
	// CPU and Memory are how much of what it has its pods request, in percent.
	CPU    float64 `json:"cpuPercent"`
	Memory float64 `json:"memoryPercent"`

	offer int
}

// mostRounds is how often nodes are bought for what is left. The first time is for all pods, the
// others for what numbers do not know.
const mostRounds = 20

// Make plans nodes for the pods that are pending in the world. It adds them to the world, and the
// pods to the nodes.
func Make(w *simulate.World, c *Catalog, o Options) (*Plan, error) {
	return newMaker(w, c, o).make()
}

func newMaker(w *simulate.World, c *Catalog, o Options) *maker {
	return &maker{w: w, c: c, o: o, named: map[string]bool{},
		plan: &Plan{Nodes: []Node{}, Pending: []Waiting{}, catalog: c, Notes: slices.Clone(c.Notes)}}
}

func (m *maker) make() (*Plan, error) {
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

	m.finish()
	if err := m.proveSpot(); err != nil {
		return nil, err
	}
	return m.plan, m.w.Err()
}

// buyFor buys nodes for the pods, and for those of them that are left then, until none is or it
// helps no more.
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

// among are those of the pods that are pending.
func (m *maker) among(pods []*cluster.Pod) []*cluster.Pod {
	of := make(map[types.UID]bool, len(pods))
	for _, p := range pods {
		of[p.UID] = true
	}
	return slices.DeleteFunc(m.pending(), func(p *cluster.Pod) bool { return m.steady && !of[p.UID] })
}

// maker makes a plan.
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
	first  int   // how many pods the first round had
	bought []int // by offer, in the order of the nodes
	number map[string]int
	named  map[string]bool
	// free is what a pod is to the bound, and rooms what offers have for it: as first read.
	free  map[types.UID]*free
	rooms [][]int64
	why   map[simulate.Name]string
}

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
		if rules.ControllerKind(f.Object) == rules.DaemonSet {
			continue
		}
		pods = append(pods, f.Pod)
	}
	return pods
}

// buy buys nodes for the pods, and has the scheduler try them. It returns false if there is nothing
// to buy.
func (m *maker) buy(pods []*cluster.Pod) bool {
	d := m.read(pods)
	m.limit(d.problem, nil)
	known := m.w.Introduce()
	solution := packing.Solve(d.problem, packing.Options{Seed: m.o.Seed, Rounds: m.effort(len(pods))})
	known()
	m.helpless(d, solution)
	if len(solution.Bins)+len(d.kept) == 0 {
		return false
	}

	var made []metav1.Object
	var nodes []*v1.Node
	for _, b := range solution.Bins {
		node := m.node(b.Bin)
		made, nodes = append(made, node), append(nodes, node)
	}

	planned := d.assign(solution, nodes)
	m.say("round %d: trying %d pods on %d nodes", m.rounds, len(planned), len(made))
	if _, err := m.w.Apply(manifest.Assemble("the catalog", made)); err != nil {
		return false
	}

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

// read makes numbers of the pods, while a node of each kind is in the cluster.
func (m *maker) read(pods []*cluster.Pod) *demand {
	d := &demand{world: m.w, offers: m.c.Offers, cautious: m.rounds > 1, limit: m.limit, steady: m.steady}
	keys := told(m.w, pods)
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
func (m *maker) limit(p *packing.Problem, also []int) {
	used := make([]int, len(m.c.Offers))
	copy(used, also)
	for _, offer := range m.bought {
		used[offer]++
	}

	for i, o := range m.c.Offers {
		if o.Most > 0 {
			if p.Bins[i].Most = o.Most - used[i] - m.there(i); p.Bins[i].Most <= 0 {
				p.Limits = append(p.Limits, packing.Limit{Costs: map[int]int64{i: 1}, Most: 0})
			}
		}
	}

	for at := range m.c.Pools {
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

// left is what the nodes that the world began with leave of a pool's limit.
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

func (m *maker) isNew(node string) bool { return m.named[node] }

func amountOf(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// helpless keeps why pods cannot be helped.
func (m *maker) helpless(d *demand, s *packing.Solution) {
	if m.why == nil {
		m.why = map[simulate.Name]string{}
	}
	for _, h := range d.helpless {
		m.why[simulate.Name{Namespace: h.Namespace, Name: h.Name}] = h.Message
	}
	for i, n := range s.Left {
		for _, p := range d.items[i].pods[len(d.items[i].pods)-n:] {
			m.why[simulate.Name{Namespace: p.Namespace(), Name: p.Name}] = "the limits of the node pools are reached"
		}
	}
}

// node makes a node of an offer.
func (m *maker) node(offer int) *v1.Node {
	o := &m.c.Offers[offer]
	if m.number == nil {
		m.number = map[string]int{}
	}

	name := ""
	for name == "" || m.w.Node(name) != nil {
		m.number[o.Pool]++
		name = fmt.Sprintf("%s-new-%d", strings.ToLower(o.Pool), m.number[o.Pool])
	}

	node := o.named(name, m.w)
	m.plan.Nodes = append(m.plan.Nodes, Node{
		Name: name, Pool: o.Pool, Type: o.Type, Zone: o.Zone, CapacityType: o.CapacityType, Price: o.Price, Pods: []string{}, offer: offer,
	})
	m.bought, m.named[name] = append(m.bought, offer), true
	return node
}

// named returns a node of the offer.
func (o *Offer) named(name string, w *simulate.World) *v1.Node {
	node := o.Node.DeepCopy()
	node.Name = name
	node.CreationTimestamp = metav1.NewTime(w.Now())
	metav1.SetMetaDataLabel(&node.ObjectMeta, v1.LabelHostname, name)
	return node
}
