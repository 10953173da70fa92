// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"
	"math/bits"

	config "k8s.io/kube-scheduler/config/v1"
)

// LeastAllocatedScore is the free share of a resource, in 0..MaxScore: 1 of 4 CPU requested gives
// 75. requested includes the pending pod. An overcommitted or absent resource gives 0.
func LeastAllocatedScore(requested, allocatable int64) int64 {
	if allocatable == 0 || requested > allocatable {
		return 0
	}
	return scoreShare(allocatable-requested, allocatable)
}

// MostAllocatedScore is the requested share of a resource, in 0..MaxScore: 1 of 4 CPU requested
// gives 25. Defaults for containers without a request can raise requested above the whole, and the
// share is then capped at 1.
func MostAllocatedScore(requested, allocatable int64) int64 {
	if allocatable == 0 {
		return 0
	}
	return scoreShare(min(requested, allocatable), allocatable)
}

// scoreShare is part*MaxScore/whole, without overflow. On very large nodes, upstream's product
// overflows an int64 and wraps around. It requires 0 <= part <= whole; the division panics unless
// whole > 0.
func scoreShare(part, whole int64) int64 {
	if part <= math.MaxInt64/MaxScore {
		return part * MaxScore / whole
	}
	high, low := bits.Mul64(uint64(part), MaxScore)
	quotient, _ := bits.Div64(high, low, uint64(whole))
	return int64(quotient)
}

// shape is a piecewise linear function from utilisation (in per cent) to score. It is constant
// beyond its first and last point. It has at least one point, and utilisations increase strictly
// ([ValidateArgs]).
//
//	points (0, 0) and (100, 10) in the file  ->  scoreAt(50) = 50: bin packing
//	points (0, 10) and (100, 0)              ->  scoreAt(20) = 80: spreading
type shape []shapePoint

// shapePoint is a point with its score scaled to 0..MaxScore.
type shapePoint struct{ utilization, score int64 }

// maxShapeScore is the highest score in a configuration file.
const maxShapeScore = 10

// newShape scales the scores of a configuration file, 0..10, to 0..MaxScore.
func newShape(points []config.UtilizationShapePoint) shape {
	s := make(shape, len(points))
	for i, p := range points {
		s[i] = shapePoint{int64(p.Utilization), int64(p.Score) * (MaxScore / maxShapeScore)}
	}
	return s
}

// scoreAt returns the score of a utilisation, interpolated between points and truncated.
func (s shape) scoreAt(utilization int64) int64 {
	for i := range s {
		if utilization > s[i].utilization {
			continue
		}
		if i == 0 {
			return s[0].score
		}
		a, b := s[i-1], s[i]
		return a.score + (b.score-a.score)*(utilization-a.utilization)/(b.utilization-a.utilization)
	}
	return s[len(s)-1].score
}

// scoreRatio is the score of a resource by the shape. An absent or overcommitted resource counts as
// fully utilised.
func (s shape) scoreRatio(requested, allocatable int64) int64 {
	if allocatable == 0 || requested > allocatable {
		return s.scoreAt(100)
	}
	return s.scoreAt(scoreShare(requested, allocatable))
}

// addScore adds a resource to the weighted sum, if the node has it.
func (f *NodeResourcesFit) addScore(sum, weights *int64, weight, requested, allocatable int64) {
	if allocatable == 0 || weight == 0 {
		return
	}
	var score int64
	switch f.strategy {
	case config.LeastAllocated:
		score = LeastAllocatedScore(requested, allocatable)
	case config.MostAllocated:
		score = MostAllocatedScore(requested, allocatable)
	default:
		if score = f.shape.scoreRatio(requested, allocatable); score <= 0 { // a resource with score 0 does not add its weight
			return
		}
	}
	*sum += score * weight
	*weights += weight
}

// meanScore divides the weighted sum by the weights. Like upstream's strategies, it rounds for
// RequestedToCapacityRatio and truncates otherwise. It is 0 if no resource has weight.
func (f *NodeResourcesFit) meanScore(sum, weights int64) int64 {
	switch {
	case weights == 0:
		return 0
	case f.strategy == config.RequestedToCapacityRatio:
		return int64(math.Round(float64(sum) / float64(weights)))
	}
	return sum / weights
}
