// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"

	v1 "k8s.io/api/core/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// NodeResourcesBalancedAllocation scores nodes by the degree to which the pod balances the
// utilisation of their resources: a node with much CPU and little memory free suits pods that need
// CPU. The score depends on the change of the balance as well as on the result.
//
//	a node has 80 % of its CPU and 20 % of its memory requested:  balance 100 - 60/2 = 70
//	a pod that brings memory to 60 % makes it:                    balance 100 - 20/2 = 90
//	score: Evenness(90, 70) = 50 + (50 + 90 - 70)/2               = 85
type NodeResourcesBalancedAllocation struct {
	specs       resourceSpecs
	cpu, memory bool // whether CPU and memory count
	stock       deviceStock
}

// NewNodeResourcesBalancedAllocation returns the plugin; nil args select the defaults.
func NewNodeResourcesBalancedAllocation(args *config.NodeResourcesBalancedAllocationArgs) (*NodeResourcesBalancedAllocation, error) {
	args, err := completeArgs(args)
	if err != nil {
		return nil, err
	}
	b := &NodeResourcesBalancedAllocation{specs: args.Resources}
	b.cpu, b.memory = b.specs.weightOf(v1.ResourceCPU) > 0, b.specs.weightOf(v1.ResourceMemory) > 0
	return b, nil
}

// Name implements Scorer.
func (*NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// Score implements Scorer. It skips pods that request none of the resources: otherwise all such
// pods would be placed on the node with the best balance (kubernetes/kubernetes#129138).
func (b *NodeResourcesBalancedAllocation) Score(c *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	reader, skip := b.readerFor(c, p)
	if skip {
		return Scoring{}
	}
	return Scoring{Node: func(n *cluster.Node) (int64, error) {
		with, without := make([]float64, 0, 4), make([]float64, 0, 4)
		for i := range reader.specs {
			a := reader.amountsOn(i, n)
			if a.allocatable == 0 {
				continue
			}
			with = append(with, requestedFraction(rules.Sum(a.allocated, reader.wanted[i]), a.allocatable))
			without = append(without, requestedFraction(a.allocated, a.allocatable))
		}
		return Evenness(balanceScore(with), balanceScore(without)), nil
	}}
}

// readerFor prepares the amounts for a pod; skip is set if the pod requests none of the resources.
// Requests count literally, without defaults for containers without requests.
func (b *NodeResourcesBalancedAllocation) readerFor(c *cluster.Cluster, p *cluster.Pod) (reader *resourceReader, skip bool) {
	reader = &resourceReader{specs: b.specs, wanted: b.specs.requestsOf(p, rules.Requests), cluster: c}
	reader.devices = b.stock.countsFor(c, b.specs, reader.wanted)
	for _, amount := range reader.wanted {
		if amount != 0 {
			return reader, false
		}
	}
	return reader, true
}

// ScoreByRoom implements [RoomScorer]. EvennessRule needs both CPU and memory: with only one of
// them every node is balanced.
func (b *NodeResourcesBalancedAllocation) ScoreByRoom(c *cluster.Cluster, p *cluster.Pod) RoomScore {
	reader, skips := b.readerFor(c, p)
	score := RoomScore{Skips: skips, Only: reader.roomOnly(), Score: b.roomScore}
	score.CPU, score.Memory = reader.cpuAndMemory()
	if b.cpu && b.memory {
		score.Rule = EvennessRule
	}
	return score
}

// roomScore is Score for pods that need only CPU and memory, from the node's Room.
func (b *NodeResourcesBalancedAllocation) roomScore(room *cluster.Room, cpu, memory int64) int64 {
	if room.CPU == 0 || room.Memory == 0 || !b.cpu || !b.memory { // at most one resource: always even
		return Evenness(MaxScore, MaxScore)
	}
	return EvennessScore(room.RequestedCPU, cpu, room.CPU, room.RequestedMemory, memory, room.Memory)
}

// requestedFraction is the requested share, at most 1, even on an overcommitted node. allocatable
// must be above 0.
func requestedFraction(requested, allocatable int64) float64 {
	return min(float64(requested)/float64(allocatable), 1)
}

// balanceScore is MaxScore minus the standard deviation of the shares, in per cent. The order of
// the operations affects the last digit; it matches upstream. Shares are in 0..1, so the deviation
// is at most one half and the result at least 50.
func balanceScore(fractions []float64) int64 {
	switch len(fractions) {
	case 0, 1:
		return MaxScore
	case 2:
		return balanceOfTwo(fractions[0], fractions[1])
	}
	var total float64
	for _, f := range fractions {
		total += f
	}
	mean := total / float64(len(fractions))
	var sum float64
	for _, f := range fractions {
		sum += (f - mean) * (f - mean)
	}
	return int64((1 - math.Sqrt(sum/float64(len(fractions)))) * float64(MaxScore))
}

// balanceOfTwo is balanceScore of two shares. The deviation of two values is half their distance,
// without a square root.
func balanceOfTwo(a, b float64) int64 {
	return int64((1 - math.Abs((a-b)/2)) * float64(MaxScore))
}

// Evenness is the score from the balance with the pod and the balance without it, both in 50..100.
// It ranges from 50, if the pod unbalances the node as far as possible, to 100. At 75 the balance
// does not change.
func Evenness(with, without int64) int64 {
	return MaxScore/2 + (MaxScore/2+with-without)/2
}

// EvennessScore scores a node with both CPU and memory.
func EvennessScore(requestedCPU, podCPU, cpu, requestedMemory, podMemory, memory int64) int64 {
	return Evenness(BalanceScore(rules.Sum(requestedCPU, podCPU), cpu, rules.Sum(requestedMemory, podMemory), memory),
		BalanceScore(requestedCPU, cpu, requestedMemory, memory))
}

// BalanceScore is the balance of the requested shares of CPU and memory, in 50..100.
func BalanceScore(requestedCPU, cpu, requestedMemory, memory int64) int64 {
	return balanceOfTwo(requestedFraction(requestedCPU, cpu), requestedFraction(requestedMemory, memory))
}
