// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Spot is the share of spot capacity in the CPU of all nodes, which a provider may reclaim at any
// time. Both numbers are in percent.
type Spot struct {
	// Percent is the share of spot after all purchases, and Most is the maximum share.
	Percent float64 `json:"percent"`
	Most    float64 `json:"mostPercent"`
}

// spotLabels are the labels that identify nodes and offers as spot capacity.
var spotLabels = map[string]string{
	capacityTypeLabel:                       "spot",
	"eks.amazonaws.com/capacityType":        "SPOT",
	"cloud.google.com/gke-spot":             "true",
	"kubernetes.azure.com/scalesetpriority": "spot",
}

// isSpot reports whether a node, or an offer, with these labels is spot capacity. The case of the
// value does not matter.
func isSpot(labels map[string]string) bool {
	return rules.Any(maps.Keys(spotLabels), func(key string) bool { return strings.EqualFold(labels[key], spotLabels[key]) })
}

// buyInShares buys non-spot nodes first, for enough pods that spot nodes can take the remaining
// pods within the share. The limit on spot then works like a pool's limit: it follows from nodes
// with pods, and no later step makes it smaller.
//
//	8 CPUs of other capacity, none of spot, at most 50 % of spot, pods for 12 CPUs
//	other nodes for 2 CPUs are bought first; then 10 CPUs may be spot, in addition to 10 CPUs of other capacity
func (m *maker) buyInShares(pods []*cluster.Pod) {
	m.read(pods) // the bound covers all pods
	m.steady = true
	m.buyFor(m.steadyOf(pods))
	m.steady = false

	// Non-spot purchases stay; only the rounds restart.
	m.dropEmpty()
	m.why, m.first, m.rounds = nil, 0, 0
}

// steadyOf chooses the pods for non-spot nodes, evenly among all pods. Pods of a group stay
// together.
//
// Each pod adds the required part of its CPU to the amount due, and is chosen if at least half of
// its CPU is due. Of any sequence of consecutive pods, about the required part is therefore chosen,
// and small and large pods are treated alike.
func (m *maker) steadyOf(pods []*cluster.Pod) (list []*cluster.Pod) {
	total := 0.0
	for _, p := range pods {
		total += float64(p.Class.Requests.MilliCPU)
	}
	// Existing spot capacity uses up the share.
	steady, spot, _ := m.standing()
	share := *m.o.Spot
	// need is the CPU of pods required on other capacity: with x of it, spot is total - x + spot,
	// and steady + x must be at least (1-share)/share times that.
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

// standing returns the CPU of non-spot nodes that stay, and of spot capacity, in total and by
// market. New nodes without pods do not count as staying, because they are not bought in the end.
// Nodes about to be drained (o.leaving) do not count either.
func (m *maker) standing() (steady, spot int64, markets map[string]int64) {
	markets = map[string]int64{}
	for _, n := range m.w.Cluster().Nodes {
		switch {
		case n == nil || isTrial(n.Name) || m.o.leaving[n.Name] != nil:
		case isSpot(n.Object().Labels):
			spot += n.Size.MilliCPU
			markets[spotMarket(n.Object().Labels)] += n.Size.MilliCPU
		case !m.isNew(n.Name) || len(podsOf(n)) > 0:
			steady += n.Size.MilliCPU
		}
	}
	return steady, spot, markets
}

// spotMarkets is the number of markets over which purchases of spot capacity are spread, since a
// provider reclaims spot capacity of one type in one zone together.
const spotMarkets = 3

// spotMarket names the spot capacity of one type in one zone. It returns "" for other capacity.
func spotMarket(labels map[string]string) string {
	if !isSpot(labels) {
		return ""
	}
	return labels[v1.LabelInstanceTypeStable] + " in " + labels[v1.LabelTopologyZone]
}

// limitSpot limits the spot capacity in a problem to the remaining amount. It applies to the nodes
// at the time the problem is built: x / (steady + x) <= share, solved for x. Each market gets an
// equal part of x, but at least one node.
func (m *maker) limitSpot(p *packing.Problem, also []int) {
	// A share of 1 limits nothing, and would divide by zero below.
	if m.o.Spot == nil || *m.o.Spot >= 1 {
		return
	}

	steady, spot, there := m.standing()
	share := *m.o.Spot
	// Round down, so that the share also holds for whole thousandths of a CPU.
	most := int64(math.Floor(share * float64(steady) / (1 - share)))
	all, markets := packing.Limit{Costs: map[int]int64{}, Most: most - spot}, map[string]packing.Limit{}
	for i, o := range m.c.Offers {
		of := spotMarket(o.Node.Labels)
		if of == "" {
			continue
		}
		all.Costs[i] = o.Node.Status.Allocatable.Cpu().MilliValue()
		if markets[of].Costs == nil {
			markets[of] = packing.Limit{Costs: map[int]int64{}, Most: all.Costs[i] - there[of]}
		}
		markets[of].Costs[i] = all.Costs[i]
	}
	limits := []packing.Limit{all}
	for _, of := range slices.Sorted(maps.Keys(markets)) {
		one := markets[of]
		one.Most = max(one.Most, most/int64(min(len(markets), spotMarkets))-there[of])
		limits = append(limits, one)
	}
	for _, limit := range limits {
		for i, n := range also {
			limit.Most -= limit.Costs[i] * int64(n)
		}
		limit.Most = max(limit.Most, 0)
		p.Limits = append(p.Limits, limit)
	}
}

// shareOfSpot returns the share of spot in the CPU of a world's nodes. It counts allocatable CPU of
// all nodes, with or without pods.
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

// proveSpot records the amount of spot, and verifies that the purchases respect the share. A share
// already exceeded before the first purchase is not the plan's fault.
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
		m.plan.Notes = append(m.plan.Notes, "the lower bound is computed as if all nodes could be spot")
	}
	return nil
}
