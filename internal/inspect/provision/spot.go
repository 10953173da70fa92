package provision

import (
	"fmt"
	"math"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Spot is how much of the CPU of all nodes is that of spot capacity, which a provider may take back
// at any time, where that is bounded. Both are in percent.
type Spot struct {
	// Percent is what spot has once the plan is bought, Most what it may have.
	Percent float64 `json:"percent"`
	Most    float64 `json:"mostPercent"`
}

// spotLabels are the labels by which nodes, and offers, are known to be spot capacity.
var spotLabels = map[string]string{
	capacityTypeLabel:                       "spot",
	"eks.amazonaws.com/capacityType":        "SPOT",
	"cloud.google.com/gke-spot":             "true",
	"kubernetes.azure.com/scalesetpriority": "spot",
}

// isSpot reports whether a node, or an offer, with these labels is spot capacity. The case of the
// value does not matter.
func isSpot(labels map[string]string) bool {
	for key, value := range spotLabels {
		if strings.EqualFold(labels[key], value) {
			return true
		}
	}
	return false
}

// buyInShares buys nodes that are no spot capacity first, for so many of the pods that the others
// can have spot within its share. What spot there may be is then a limit like that of a pool: it
// follows from nodes that have pods, and nothing that happens later makes it less.
//
//	8 CPUs of other capacity, none of spot, at most 50 % of spot, pods for 12 CPUs
//	other nodes for 2 CPUs are bought first; then 10 CPUs may be spot, beside 10 of others
func (m *maker) buyInShares(pods []*cluster.Pod) {
	m.read(pods) // the bound is about all pods
	m.steady = true
	m.buyFor(m.steadyOf(pods))
	m.steady = false

	// What was bought for other capacity stays; only the rounds begin anew.
	m.dropEmpty()
	m.why, m.first, m.rounds = nil, 0, 0
}

// steadyOf chooses the pods for which nodes other than spot are bought, evenly among all. Those of
// a pod group stay together.
//
// Each pod adds its part of CPU to what is due, and is chosen when at least half of it is due: so
// any run of pods in the order has about the share, and small and large pods alike.
func (m *maker) steadyOf(pods []*cluster.Pod) (list []*cluster.Pod) {
	total := 0.0
	for _, p := range pods {
		total += float64(p.Class.Requests.MilliCPU)
	}
	// Spot capacity that is there already uses up the share.
	steady, spot := m.standing()
	share := *m.o.Spot
	// need is how much CPU of pods has to be on other capacity: with x of it, spot is total - x +
	// spot, and steady + x has to be at least (1-share)/share times that.
	need := (1-share)*(total+float64(spot)) - share*float64(steady)
	part := min(max(need/max(total, 1), 0), 1)

	due, chosen := 0.0, map[*groups.Group]bool{}
	for _, p := range pods {
		cpu := float64(p.Class.Requests.MilliCPU)
		due += part * cpu
		// The first pod of a group decides for all of them.
		g := m.w.GroupOf(p)
		take, known := chosen[g]
		if g == nil || !known {
			take = due >= cpu/2 && due > 0
			chosen[g] = take
		}
		if take {
			due -= cpu
			list = append(list, p)
		}
	}
	return list
}

// standing is the CPU of nodes that stay, and of spot capacity. New nodes without pods do not count
// as staying: they are not bought in the end. Nodes that will be drained (o.leaving) do not count
// either.
func (m *maker) standing() (steady, spot int64) {
	for _, n := range m.w.Cluster().Nodes {
		switch {
		case n == nil || isTrial(n.Name) || m.o.leaving[n.Name]:
		case isSpot(n.Object().Labels):
			spot += n.Size.MilliCPU
		case !m.isNew(n.Name) || len(podsOf(n)) > 0:
			steady += n.Size.MilliCPU
		}
	}
	return steady, spot
}

// limitSpot tells a problem how much spot may be bought yet. It holds for the nodes as they are
// when a problem is made: x / (steady + x) <= share, solved for x.
func (m *maker) limitSpot(p *packing.Problem, also []int) {
	// A share of 1 would divide by zero, and limits nothing.
	if m.o.Spot == nil || *m.o.Spot >= 1 {
		return
	}

	steady, spot := m.standing()
	share := *m.o.Spot
	// Rounded down, so that the share holds for whole thousandths of a CPU, too.
	limit := packing.Limit{Costs: map[int]int64{}, Most: int64(math.Floor(share*float64(steady)/(1-share))) - spot}
	for i, o := range m.c.Offers {
		if isSpot(o.Node.Labels) {
			limit.Costs[i] = o.Node.Status.Allocatable.Cpu().MilliValue()
		}
	}
	for i, n := range also {
		limit.Most -= limit.Costs[i] * int64(n)
	}
	limit.Most = max(limit.Most, 0)
	p.Limits = append(p.Limits, limit)
}

// shareOfSpot returns what share of the CPU of a world's nodes is that of spot. It counts
// allocatable CPU, of all nodes alike, whether or not they have pods.
func shareOfSpot(w *simulate.World) float64 {
	var all, spot int64
	for _, n := range w.Cluster().Nodes {
		if n == nil {
			continue
		}
		all += n.Size.MilliCPU
		if isSpot(n.Object().Labels) {
			spot += n.Size.MilliCPU
		}
	}
	return float64(spot) / float64(max(all, 1))
}

// proveSpot says how much spot there is, and makes sure that what was bought keeps to the share. A
// share that was exceeded before any node was bought is no fault of the plan.
func (m *maker) proveSpot() error {
	if m.o.Spot == nil {
		return nil
	}

	share, bought := shareOfSpot(m.w), false
	for _, n := range m.plan.Nodes {
		bought = bought || isSpot(m.c.Offers[n.offer].Node.Labels)
	}
	if bought && share > *m.o.Spot+tiny {
		return fmt.Errorf("the plan has %.2f %% of the CPU on spot, and %.2f %% is the most", 100*share, 100**m.o.Spot)
	}
	m.plan.Spot = &Spot{Percent: math.Round(10000*share) / 100, Most: math.Round(10000**m.o.Spot) / 100}
	if bought || len(m.plan.Nodes) > 0 && *m.o.Spot < 1 {
		m.plan.Notes = append(m.plan.Notes, "what is possible at all is counted as if all nodes could be spot")
	}
	return nil
}
