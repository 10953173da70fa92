// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/fragmentation"
)

// Learnt holds the lessons of the plugin Fragmentation for its successor, after a reload of the
// configuration or in the next file of a journal. Without it the successor would learn from the
// running pods, and the replay of a journal's second file would differ from the original.
type Learnt struct {
	Resource v1.ResourceName
	Unit     int64
	Seen     int64 // number of learnt pods
	Next     int64 // value of Seen at which lessons take effect
	Fading   int64 // value of Seen at which all weights fade
	Shapes   []LearntShape
}

// LearntShape is a kind of pods, its frequency, and its eligible nodes. CPU is in thousandths,
// memory in bytes, Amount in the steps of package fragmentation. Journals contain it, so field
// names must not change.
type LearntShape struct {
	CPU, Memory, Amount, Weight int64
	NodeSelector                map[string]string `json:",omitempty"`
	NodeAffinity                *v1.NodeSelector  `json:",omitempty"`
}

// Learnt returns the lessons of the profile's plugin Fragmentation, or nil if there are none or the
// workload is given. The most frequent shapes are first, so that equal states are written
// identically.
func (p *Profile) Learnt() *Learnt {
	f := fragmentationIn(p)
	if f == nil {
		return nil
	}
	c := f.coming
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.given || len(c.shapes) == 0 {
		return nil
	}

	l := &Learnt{Resource: f.resource, Unit: f.devices.Unit, Seen: c.seen, Next: c.next, Fading: c.fading}
	for _, key := range c.sortedShapes() {
		s := c.shapes[key]
		shape := LearntShape{CPU: s.task.CPU, Memory: s.task.Memory, Amount: s.task.Amount, Weight: s.task.Weight}
		if s.where != nil {
			shape.NodeSelector, shape.NodeAffinity = s.where.labels, s.where.required
		}
		l.Shapes = append(l.Shapes, shape)
	}
	return l
}

// Relearn replaces the lessons of the profile's plugin Fragmentation with earlier ones, unless its
// workload is given or the plugin now covers other devices. The weights fade no later than the
// current half-life requires.
func (p *Profile) Relearn(l *Learnt) {
	f := fragmentationIn(p)
	if f == nil || l == nil || l.Resource != f.resource || l.Unit != f.devices.Unit {
		return
	}
	c := f.coming
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.given {
		return
	}

	clear(c.shapes)
	for _, s := range l.Shapes {
		where, key := chooseNodes(s.NodeSelector, s.NodeAffinity)
		c.addTask(fragmentation.Task{CPU: s.CPU, Memory: s.Memory, Amount: s.Amount}, s.Weight, where, key)
	}
	c.seen, c.next, c.fading = l.Seen, l.Next, min(l.Fading, l.Seen+c.every)
	c.begun, c.current = true, nil
}
