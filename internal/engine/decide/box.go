// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// point is the position of a node in a tree: the properties of its room used by the scores and
// filters for a pod of any size.
type point struct {
	at                  [axes]float64
	freeCPU, freeMemory int64
	balance             int8
}

// The axes of a tree. All except votes are percentages of the node: the free share, as computed by
// LeastAllocatedScore; the requested share; and the share of one unit of CPU or memory.
const (
	leftCPU = iota
	leftMemory
	usedCPU
	usedMemory
	perCPU
	perMemory
	votes // votes of foreign terms, if the base sums them
	axes
)

// isFull reports whether a node has no free pod slot; full nodes are in no tree.
func isFull(room *cluster.Room) bool { return room.Pods >= room.MaxPods }

// hasBothResources reports whether a node has both resources, as the bounds of a box require.
func hasBothResources(room *cluster.Room) bool { return room.CPU > 0 && room.Memory > 0 }

// pointOf computes the point of a node with this room. It multiplies by reciprocals instead of
// dividing; slack covers the rounding error. The function must stay small enough to be inlined.
func pointOf(room *cluster.Room, balance int8, voted int64) point {
	cpu, memory := float64(room.PerCPU)*plugins.MaxScore, float64(room.PerMemory)*plugins.MaxScore
	return point{
		at: [axes]float64{
			float64(room.CPU-room.NonZeroCPU) * cpu, float64(room.Memory-room.NonZeroMemory) * memory,
			float64(room.RequestedCPU) * cpu, float64(room.RequestedMemory) * memory, cpu, memory, float64(voted),
		},
		freeCPU: room.CPU - room.RequestedCPU, freeMemory: room.Memory - room.RequestedMemory,
		balance: balance,
	}
}

// box bounds the points of a cell. It contains all of them; an oversized box only costs time.
//
// The bounds of the scores in a box are computed with the arithmetic of the plugins, for any
// request, and rounded outwards by slack. The property test checks that every box contains its
// points, and that every bound holds for the scores (checkBases).
type box struct {
	low, high           [axes]float64
	left                float64    // the highest leftCPU+leftMemory
	lean                [2]float64 // lowest and highest usedCPU-usedMemory
	freeCPU, freeMemory [2]int64   // lowest and highest
	balance             [2]int8
}

var emptyBox = func() box {
	b := box{
		left: math.Inf(-1), lean: [2]float64{math.Inf(1), math.Inf(-1)}, freeCPU: [2]int64{math.MaxInt64, math.MinInt64},
		freeMemory: [2]int64{math.MaxInt64, math.MinInt64}, balance: [2]int8{math.MaxInt8, math.MinInt8},
	}
	for axis := range axes {
		b.low[axis], b.high[axis] = math.Inf(1), math.Inf(-1)
	}
	return b
}()

// addPoint extends the box to a point. Every field used in a score bound must be extended here and
// in joinBox: with a missing field, the upper bound may be too low, so that a decision could miss
// the best node.
func (b *box) addPoint(p *point) {
	for axis, v := range p.at {
		b.low[axis], b.high[axis] = min(b.low[axis], v), max(b.high[axis], v)
	}
	b.left = max(b.left, p.at[leftCPU]+p.at[leftMemory])
	lean := p.at[usedCPU] - p.at[usedMemory]
	b.lean[0], b.lean[1] = min(b.lean[0], lean), max(b.lean[1], lean)
	b.freeCPU[0], b.freeCPU[1] = min(b.freeCPU[0], p.freeCPU), max(b.freeCPU[1], p.freeCPU)
	b.freeMemory[0], b.freeMemory[1] = min(b.freeMemory[0], p.freeMemory), max(b.freeMemory[1], p.freeMemory)
	b.balance[0], b.balance[1] = min(b.balance[0], p.balance), max(b.balance[1], p.balance)
}

// joinBox extends the box to all points of another box.
func (b *box) joinBox(o *box) {
	for axis := range axes {
		b.low[axis], b.high[axis] = min(b.low[axis], o.low[axis]), max(b.high[axis], o.high[axis])
	}
	b.left = max(b.left, o.left)
	b.lean[0], b.lean[1] = min(b.lean[0], o.lean[0]), max(b.lean[1], o.lean[1])
	b.freeCPU[0], b.freeCPU[1] = min(b.freeCPU[0], o.freeCPU[0]), max(b.freeCPU[1], o.freeCPU[1])
	b.freeMemory[0], b.freeMemory[1] = min(b.freeMemory[0], o.freeMemory[0]), max(b.freeMemory[1], o.freeMemory[1])
	b.balance[0], b.balance[1] = min(b.balance[0], o.balance[0]), max(b.balance[1], o.balance[1])
}

// widthAlong returns the width of the box along an axis, in per cent of a node or of the range of
// votes. Along the axes of node size, it is the difference between the shares that a pod takes of
// the smallest and the largest node.
func (b *box) widthAlong(axis int, perVote float64) float64 {
	switch axis {
	case votes:
		return (b.high[axis] - b.low[axis]) * perVote
	case perCPU, perMemory:
		const pod = 8 // per cent of the largest node
		return pod * (b.high[axis]/b.low[axis] - 1)
	}
	return b.high[axis] - b.low[axis]
}

// fits reports whether all nodes of the box have room for a pod, and whether any of them may have
// room.
func (b *box) fits(q *room) (all, any bool) {
	any = (q.cpu <= 0 || q.cpu <= b.freeCPU[1]) && (q.memory <= 0 || q.memory <= b.freeMemory[1])
	all = (q.cpu <= 0 || q.cpu <= b.freeCPU[0]) && (q.memory <= 0 || q.memory <= b.freeMemory[0])
	return all, any
}

// slack is several times the rounding error of a box's bounds: Room.PerCPU has a precision of 24
// bits.
const slack = 1e-4

// noRoom is the score of a node without room.
const noRoom = -1

// boundScores returns a lower and an upper bound of the scores of the nodes in the box. low is
// noRoom if any node may lack room, and high is noRoom if all nodes lack it.
func (b *box) boundScores(q *room) (low, high int64) {
	all, any := b.fits(q)
	if !any {
		return noRoom, noRoom
	}
	if q.least.weight != 0 {
		l, h := b.boundLeastAllocated(q)
		low, high = l*q.least.weight, h*q.least.weight
	}
	if q.even.weight != 0 {
		l, h := b.boundEvenness(q)
		low, high = low+l*q.even.weight, high+h*q.even.weight
	}
	if !all {
		low = noRoom
	}
	return low, high
}

// boundLeastAllocated bounds the mean of the LeastAllocatedScores of CPU and memory.
func (b *box) boundLeastAllocated(q *room) (low, high int64) {
	least := func(resource, per int, wanted float64) float64 { return b.low[resource] - wanted*b.high[per] }
	most := func(resource, per int, wanted float64) float64 { return b.high[resource] - wanted*b.low[per] }
	score := func(left float64) int64 { return floor(max(left, 0)) }
	cpu, memory := least(leftCPU, perCPU, q.least.plain.cpu), least(leftMemory, perMemory, q.least.plain.memory)
	low = score(cpu-slack) + score(memory-slack)
	high = score(most(leftCPU, perCPU, q.least.plain.cpu)+slack) + score(most(leftMemory, perMemory, q.least.plain.memory)+slack)
	if cpu >= 0 && memory >= 0 { // no score is clamped to 0
		high = min(high, floor(b.left-q.least.plain.cpu*b.low[perCPU]-q.least.plain.memory*b.low[perMemory]+2*slack))
	}
	return low / 2, high / 2
}

// boundEvenness bounds EvennessScore.
func (b *box) boundEvenness(q *room) (low, high int64) {
	const most = plugins.MaxScore
	moreCPU, moreMemory := [2]float64{q.even.plain.cpu * b.low[perCPU], q.even.plain.cpu * b.high[perCPU]},
		[2]float64{q.even.plain.memory * b.low[perMemory], q.even.plain.memory * b.high[perMemory]}
	// Shares may be clamped to 1.
	if b.high[usedCPU]+moreCPU[1] > most-slack || b.high[usedMemory]+moreMemory[1] > most-slack {
		return plugins.Evenness(most/2, most), plugins.Evenness(most, most/2)
	}
	shift := [2]float64{moreCPU[0] - moreMemory[1], moreCPU[1] - moreMemory[0]}
	withLow, withHigh := balanceBetween(b.lean[0]+shift[0], b.lean[1]+shift[1])
	// The range by which the pod makes a node less even.
	worse := [2]float64{-max(math.Abs(shift[0]), math.Abs(shift[1])), max(math.Abs(shift[0]), math.Abs(shift[1]))}
	if shift[0] == shift[1] { // nodes of the same size: the range increases with the lean, or decreases if shift < 0
		worse = [2]float64{math.Abs(b.lean[0]+shift[0]) - math.Abs(b.lean[0]), math.Abs(b.lean[1]+shift[0]) - math.Abs(b.lean[1])}
		if shift[0] < 0 {
			worse[0], worse[1] = worse[1], worse[0]
		}
	}
	changeLow := max(withLow-int64(b.balance[1]), floor(-worse[1]/2-slack))
	changeHigh := min(withHigh-int64(b.balance[0]), floor(-worse[0]/2+slack)+1)
	return plugins.Evenness(changeLow, 0), plugins.Evenness(changeHigh, 0)
}

// balanceBetween bounds BalanceScore for a difference of shares between leanLow and leanHigh.
func balanceBetween(leanLow, leanHigh float64) (low, high int64) {
	most, least := max(math.Abs(leanLow), math.Abs(leanHigh)), 0.0
	if leanLow > 0 || leanHigh < 0 {
		least = min(math.Abs(leanLow), math.Abs(leanHigh))
	}
	return floor(plugins.MaxScore - most/2 - slack), floor(plugins.MaxScore - least/2 + slack)
}

func floor(x float64) int64 { return int64(math.Floor(x)) }
