package pressure

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Core tracks which thresholds are met, and since when, as the kubelet's eviction manager does
// between two of its rounds. It is not safe for concurrent use.
type Core struct {
	thresholds []Threshold
	transition time.Duration
	maxGrace   int64
	// since is when each threshold was first met, continuously since then; zero: it is not met.
	since []time.Time
	// due: it has been met for its grace period, and its minimum reclaim has not been freed yet.
	due []bool
	// seen is when a threshold of each condition was last met. A condition is true as long as it is
	// here: for the transition period.
	seen map[v1.NodeConditionType]time.Time
}

// NewCore begins without pressure. The error names the flag that is wrong.
func NewCore(config Config) (*Core, error) {
	thresholds, err := config.Thresholds()
	if err != nil {
		return nil, err
	}
	return &Core{
		thresholds: thresholds, transition: config.Transition, maxGrace: int64(config.MaxPodGrace),
		since: make([]time.Time, len(thresholds)), due: make([]bool, len(thresholds)), seen: map[v1.NodeConditionType]time.Time{},
	}, nil
}

// Verdict is the result of one step. The zero value is a node without pressure.
type Verdict struct {
	// Conditions that are true now, sorted.
	Conditions []v1.NodeConditionType
	// Starved is what has to be freed now; nil: nothing.
	Starved *Starved
}

// Starved is a resource that is short, and the observation that showed it. It is what Rank and
// Victim need to choose a pod.
type Starved struct {
	Signal   Signal
	Resource v1.ResourceName
	// hard: a hard threshold is met, so pods get no grace period.
	hard bool
	// Threshold and available as the eviction's message names them.
	threshold, available resource.Quantity
	imagesApart          bool
	layersWithNode       bool
	maxGrace             int64
}

// Step applies an observation. Observations come in the order of their times. Of several thresholds
// that are due, the first in the order of Thresholds is starved: memory before disks, and hard
// thresholds before soft ones.
func (c *Core) Step(levels Levels, now time.Time) Verdict {
	first := -1
	for i, threshold := range c.thresholds {
		level, observed := levels.Signals[threshold.Signal]
		if !observed || !isMet(threshold, level, c.due[i]) {
			// A gap ends the grace period: it must be met without interruption.
			c.since[i], c.due[i] = time.Time{}, false
			continue
		}
		if c.since[i].IsZero() {
			c.since[i] = now
		}
		c.seen[meanings[threshold.Signal].condition] = now
		c.due[i] = now.Sub(c.since[i]) >= threshold.Grace
		if c.due[i] && first < 0 {
			first = i
		}
	}

	verdict := Verdict{Conditions: c.currentConditions(now)}
	if first >= 0 {
		verdict.Starved = c.newStarved(first, levels)
	}
	return verdict
}

// isMet reports whether less is available than the threshold or, once it was due, than the
// threshold plus its minimum reclaim. So that evictions do not stop right at the threshold, only to
// begin again.
//
//	memory.available<100Mi, minimum reclaim 50Mi
//	available:  120Mi  90Mi  120Mi  160Mi
//	met:        no     yes   yes    no        (if it was due at 90Mi)
func isMet(threshold Threshold, level Level, due bool) bool {
	needed := threshold.amount.quantityOf(level.Capacity)
	if due {
		needed.Add(threshold.reclaim.quantityOf(level.Capacity))
	}
	return needed.CmpInt64(level.Available) > 0
}

// currentConditions last for the transition period, so that a node whose pressure comes and goes
// does not look healthy in between. A condition that was seen in this very step is always true,
// even if the transition period is 0.
func (c *Core) currentConditions(now time.Time) []v1.NodeConditionType {
	maps.DeleteFunc(c.seen, func(_ v1.NodeConditionType, last time.Time) bool {
		return now.Sub(last) >= c.transition && !now.Equal(last)
	})
	return slices.Sorted(maps.Keys(c.seen))
}

// newStarved describes the threshold that is due, with amounts as the message words them.
func (c *Core) newStarved(first int, levels Levels) *Starved {
	threshold := c.thresholds[first]
	meaning := meanings[threshold.Signal]
	level := levels.Signals[threshold.Signal]
	return &Starved{
		Signal:         threshold.Signal,
		Resource:       meaning.resource,
		hard:           threshold.isHard(),
		threshold:      threshold.amount.quantityOf(level.Capacity),
		available:      *resource.NewQuantity(level.Available, meaning.format),
		imagesApart:    levels.ImagesApart,
		layersWithNode: levels.LayersWithNode,
		maxGrace:       c.maxGrace,
	}
}

// ofImages reports whether it is the filesystem of images that is full.
func (s *Starved) ofImages() bool { return s.Signal == ImageFs || s.Signal == ImageFsInodes }

// holdsLayers reports whether the full filesystem has containers' writable layers, and whether it
// has images. Logs and volumes are always on the node's.
//
//	the disk that is full          layers  images
//	one disk for everything        yes     yes
//	images apart: that of images   yes     yes    (layers with images)
//	images apart: the node's       no      no
func (s *Starved) holdsLayers() (layers, images bool) {
	if !s.imagesApart {
		return true, true
	}
	return s.ofImages() != s.layersWithNode, s.ofImages()
}
