// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Core tracks since when each threshold has been met, like the kubelet's eviction manager between
// its rounds. It is not safe for concurrent use.
type Core struct {
	thresholds []Threshold
	transition time.Duration
	maxGrace   int64
	// since holds the start of the uninterrupted time during which each threshold has been met. It
	// is zero for a threshold that is not met.
	since []time.Time
	// due is set once a threshold has been met for its grace period, until its minimum reclaim has
	// been freed.
	due []bool
	// seen maps each condition to the last time one of its thresholds was met. A condition is true
	// while it has an entry, which lasts for the transition period.
	seen map[v1.NodeConditionType]time.Time
}

// NewCore returns a core without pressure. The error names the offending flag.
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
	// Conditions holds the true conditions, sorted.
	Conditions []v1.NodeConditionType
	// Starved is the resource to free now; nil: none.
	Starved *Starved
}

// Starved is a scarce resource with the corresponding observation. Rank and Victim use it to select
// a pod.
type Starved struct {
	Signal   Signal
	Resource v1.ResourceName
	// hard is set if a hard threshold is met, so pods get no grace period.
	hard bool
	// threshold and available are the amounts in the eviction's message.
	threshold, available resource.Quantity
	imagesApart          bool
	layersWithNode       bool
	maxGrace             int64
}

// Step applies an observation. Observations must be in chronological order. If several thresholds
// are due, Step selects the first in the order of Thresholds: memory before disks, and hard
// thresholds before soft ones.
func (c *Core) Step(levels Levels, now time.Time) Verdict {
	first := -1
	for i, threshold := range c.thresholds {
		level, observed := levels.Signals[threshold.Signal]
		if !observed || !isMet(threshold, level, c.due[i]) {
			// The grace period will start over, because a threshold must be met without
			// interruption.
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

// isMet reports whether the available amount is below the threshold. While the threshold is due,
// its minimum reclaim is added to it; otherwise evictions would stop right at the threshold and
// soon begin again.
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

// currentConditions returns the true conditions. They last for the transition period, so that a
// node with intermittent pressure does not look healthy in between. A condition seen in this very
// step is always true, even if the transition period is 0.
func (c *Core) currentConditions(now time.Time) []v1.NodeConditionType {
	maps.DeleteFunc(c.seen, func(_ v1.NodeConditionType, last time.Time) bool {
		return now.Sub(last) >= c.transition && !now.Equal(last)
	})
	return slices.Sorted(maps.Keys(c.seen))
}

// newStarved describes the due threshold, with amounts formatted for the message.
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

// ofImages reports whether the full filesystem holds the images.
func (s *Starved) ofImages() bool { return s.Signal == ImageFs || s.Signal == ImageFsInodes }

// holdsLayers reports whether the full filesystem holds containers' writable layers and whether it
// holds images. Logs and volumes are always on the node's filesystem.
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
