// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// room judges and scores nodes for a pod whose verdict and scores depend on the placed pods only
// through the free CPU, memory and pod slots of a node. This is true for nearly all pods. The
// results of room depend only on the node's Room.
//
// Invariant: for every node, fits and scoreUnlimited equal the results of the plugins' own filter
// and scorers. The property test compares both.
type room struct {
	cpu, memory int64 // amounts that must be free

	// least is the LeastAllocatedScore and even is the EvennessScore, which can both be bounded for
	// many nodes in one step. others holds all other scores.
	least, even roomScore
	others      []roomScore
	// usual is set if there are no scores other than least and even, which is the default. One
	// function then computes both scores without calls, since hundreds of rankings may need them
	// for each placement.
	usual bool
	// skips is set if a scorer skips the pod because the pod requests no scored resource. The same
	// scorer may score another pod that differs only in the requested amounts.
	skips bool
}

// roomScore is a scorer's score by room.
type roomScore struct {
	weight      int64 // 0: the score is unused
	cpu, memory int64 // the pod's scored amounts
	score       func(room *cluster.Room, cpu, memory int64) int64
	rule        plugins.RoomRule
	// plain holds the amounts as floating-point numbers, which cannot overflow when added to the
	// requested amounts.
	plain struct{ cpu, memory float64 }
}

func (s *roomScore) setAmounts(cpu, memory int64) {
	s.cpu, s.memory = cpu, memory
	s.plain.cpu, s.plain.memory = float64(cpu), float64(memory)
}

func (r *room) addScore(by *plugins.RoomScore, weight int64) {
	s := roomScore{weight: weight, score: by.Score, rule: by.Rule}
	s.setAmounts(by.CPU, by.Memory)
	switch {
	case by.Rule == plugins.LeastAllocatedRule && r.least.weight == 0:
		r.least = s
	case by.Rule == plugins.EvennessRule && r.even.weight == 0:
		r.even = s
	default:
		r.others = append(r.others, s)
	}
}

// forClass returns the room for another class with pods that need only CPU and memory.
func (r *room) forClass(class *cluster.PodClass) *room {
	other := *r
	other.cpu, other.memory = class.Requests.MilliCPU, class.Requests.Memory
	for _, s := range [...]*roomScore{&other.least, &other.even} {
		if s.weight == 0 {
			continue
		}
		cpu, memory, skips := s.rule.Amounts(class)
		if skips {
			*s, other.usual = roomScore{}, false
			continue
		}
		s.setAmounts(cpu, memory)
	}
	return &other
}

// scoreNode returns the bucket of a node with this balance (see index), or -1 if the node lacks
// room.
func (r *room) scoreNode(room *cluster.Room, balance int8) int16 {
	if !r.fits(room) {
		return -1
	}
	return r.scoreUnlimited(room, balance)
}

// fits reports whether a node has enough room.
func (r *room) fits(room *cluster.Room) bool {
	return room.Pods < room.MaxPods && (r.cpu <= 0 || r.cpu <= room.CPU-room.RequestedCPU) &&
		(r.memory <= 0 || r.memory <= room.Memory-room.RequestedMemory)
}

// scoreUnlimited returns the score of a node regardless of whether the node has enough room.
func (r *room) scoreUnlimited(room *cluster.Room, balance int8) int16 {
	if r.usual && room.CPU > 0 && room.Memory > 0 {
		return r.usualScore(room, balance)
	}
	var sum int64
	if r.least.weight != 0 {
		sum += r.least.weight * r.least.score(room, r.least.cpu, r.least.memory)
	}
	if r.even.weight != 0 {
		sum += r.even.weight * r.even.score(room, r.even.cpu, r.even.memory)
	}
	for i := range r.others {
		s := &r.others[i]
		sum += s.weight * s.score(room, s.cpu, s.memory)
	}
	return int16(sum)
}

// doubt is the minimum distance from an integer at which a score computed by multiplication is
// known to round correctly. It is several times the error of Room.PerCPU and Room.PerMemory, for
// scores up to MaxScore.
const doubt = 1.0 / (1 << 15)

// usualScore returns the weighted sum of LeastAllocatedScore and EvennessScore. It multiplies by
// reciprocals instead of dividing, and calls the exact functions of the plugins if a result is too
// close to an integer to round reliably.
func (r *room) usualScore(room *cluster.Room, balance int8) int16 {
	perCPU, perMemory := float64(room.PerCPU), float64(room.PerMemory)
	freeCPU := (float64(room.CPU-room.NonZeroCPU) - r.least.plain.cpu) * perCPU * plugins.MaxScore
	freeMemory := (float64(room.Memory-room.NonZeroMemory) - r.least.plain.memory) * perMemory * plugins.MaxScore
	usedCPU, usedMemory := (float64(room.RequestedCPU)+r.even.plain.cpu)*perCPU,
		(float64(room.RequestedMemory)+r.even.plain.memory)*perMemory
	with := (1 - math.Abs(usedCPU-usedMemory)/2) * plugins.MaxScore

	a, b, c := int64(freeCPU), int64(freeMemory), int64(with)
	if freeCPU < 0 || freeMemory < 0 || usedCPU > 1 || usedMemory > 1 || // scores are clamped in these cases
		isDoubtful(freeCPU-float64(a)) || isDoubtful(freeMemory-float64(b)) || isDoubtful(with-float64(c)) {
		a = plugins.LeastAllocatedScore(rules.Sum(room.NonZeroCPU, r.least.cpu), room.CPU)
		b = plugins.LeastAllocatedScore(rules.Sum(room.NonZeroMemory, r.least.memory), room.Memory)
		c = plugins.BalanceScore(rules.Sum(room.RequestedCPU, r.even.cpu), room.CPU,
			rules.Sum(room.RequestedMemory, r.even.memory), room.Memory)
	}
	return int16((a+b)/2*r.least.weight + plugins.Evenness(c, int64(balance))*r.even.weight)
}

func isDoubtful(fraction float64) bool { return fraction < doubt || fraction > 1-doubt }

// roomOf judges the pods on a node and its remaining room. It returns the bucket, or ^reason.
func (r *ranking) roomOf(node int32) int16 { return r.roomBut(node, "") }

// roomBut is like roomOf, but ignores one of the pods nominated to the node.
func (r *ranking) roomBut(node int32, except types.UID) int16 {
	n, balance := r.ix.c.Nodes[node], r.ix.balance[node]
	if balance < 0 && n != nil && r.plan.guestsInRoom() {
		if rejected := r.lacksNominatedRoom(n, except); rejected < 0 {
			return rejected
		}
	}
	if balance &^= hasGuests; r.plan.onlyRoom() {
		if bucket := r.plan.room.scoreNode(&r.ix.c.Rooms[node], balance); bucket >= 0 {
			return bucket
		}
	}
	if n == nil { // the node was deleted, as a later entry of the log reports
		return ^0
	}

	for _, f := range r.plan.contents {
		if rejection := f.judge(n); rejection != nil {
			return ^r.reasonOf(f.name, rejection)
		}
	}
	if r.plan.room != nil {
		return r.plan.room.scoreNode(&r.ix.c.Rooms[node], balance)
	}
	var sum, fine int64
	for _, s := range r.plan.contentScores {
		score, finer := s.scoreFinely(n)
		sum += score * s.weight
		fine += finer * s.weight
	}
	if r.fine != nil {
		r.fine[node] = fine
	}
	return int16(sum)
}

// lacksNominatedRoom judges a node as if all pods of the same or a higher priority nominated to it
// were placed there, except for the pod with the given UID. It returns ^reason, or 0 if the node
// has room for these pods and the pending pod.
func (r *ranking) lacksNominatedRoom(n *cluster.Node, except types.UID) int16 {
	space, guests := r.space, false
	for _, g := range n.Nominated {
		if g.Class.Priority < r.plan.example.Class.Priority || g.UID() == except {
			continue
		}
		if !guests {
			space.copy, guests = n.Copy(space.copy), true
		}
		space.copy.Add(g)
	}

	if !guests {
		return 0
	}
	for _, f := range r.plan.contents {
		if rejection := f.judge(space.copy); rejection != nil {
			return ^r.reasonOf(f.name, rejection)
		}
	}

	return 0
}

// guestsInRoom reports whether the buckets account for the pods nominated to nodes. This is
// possible if only the pods on the node itself matter. Otherwise, withholdNodes judges nodes with
// nominated pods in each decision.
func (pl *plan) guestsInRoom() bool { return len(pl.tallies)+len(pl.asked) == 0 }
