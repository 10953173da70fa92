package plugins

import (
	"math"
	"math/bits"

	config "k8s.io/kube-scheduler/config/v1"
)

// LeastAllocatedScore is the share of a resource that is left, in 0..MaxScore.
func LeastAllocatedScore(requested, allocatable int64) int64 {
	if allocatable == 0 || requested > allocatable {
		return 0
	}
	return scoreShare(allocatable-requested, allocatable)
}

// MostAllocatedScore is the share of a resource that is requested, in 0..MaxScore. Defaults for
// containers without a request can bring it above the whole.
func MostAllocatedScore(requested, allocatable int64) int64 {
	if allocatable == 0 {
		return 0
	}
	return scoreShare(min(requested, allocatable), allocatable)
}

// scoreShare is part*MaxScore/whole, also where the product is larger than an int64. The part is at
// most the whole.
func scoreShare(part, whole int64) int64 {
	if part <= math.MaxInt64/MaxScore {
		return part * MaxScore / whole
	}
	high, low := bits.Mul64(uint64(part), MaxScore)
	quotient, _ := bits.Div64(high, low, uint64(whole))
	return int64(quotient)
}

// shape is a line through points of utilisation (in per cent) and score, level beyond its ends.
type shape []shapePoint

type shapePoint struct{ utilization, score int64 }

// maxShapeScore is the highest score in a configuration file.
const maxShapeScore = 10

func newShape(points []config.UtilizationShapePoint) shape {
	s := make(shape, len(points))
	for i, p := range points {
		s[i] = shapePoint{int64(p.Utilization), int64(p.Score) * (MaxScore / maxShapeScore)}
	}
	return s
}

// scoreAt returns the score of a utilisation, cut off to an integer on the way from point to point.
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

// scoreRatio is the score of a resource by the shape.
func (s shape) scoreRatio(requested, allocatable int64) int64 {
	if allocatable == 0 || requested > allocatable {
		return s.scoreAt(100)
	}
	return s.scoreAt(scoreShare(requested, allocatable))
}

// addScore takes a resource into the weighted sum, if the node has it.
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
		if score = f.shape.scoreRatio(requested, allocatable); score <= 0 { // such a resource does not even weigh
			return
		}
	}
	*sum += score * weight
	*weights += weight
}

// meanScore ends the weighted sum: cut off, or rounded for RequestedToCapacityRatio.
func (f *NodeResourcesFit) meanScore(sum, weights int64) int64 {
	switch {
	case weights == 0:
		return 0
	case f.strategy == config.RequestedToCapacityRatio:
		return int64(math.Round(float64(sum) / float64(weights)))
	}
	return sum / weights
}
