package plugins

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/fragmentation"
)

// Learnt is what the plugin Fragmentation has learnt of the pods that came, for the one that takes
// its place: when the configuration is reloaded, or the journal goes on in another file. Without it
// the pods that run would say what comes, and a journal's second file would be replayed otherwise
// than it was played.
type Learnt struct {
	Resource v1.ResourceName
	Unit     int64
	Seen     int64 // pods
	Next     int64 // number of pods at which what was learnt is put to use
	Fading   int64 // the same for when all weights fade
	Shapes   []LearntShape
}

// LearntShape is a kind of pods, how often it came, and where it may run. CPU is in thousandths,
// memory in bytes, Amount in the steps of package fragmentation. It is written to journals, so
// fields keep their names.
type LearntShape struct {
	CPU, Memory, Amount, Weight int64
	NodeSelector                map[string]string `json:",omitempty"`
	NodeAffinity                *v1.NodeSelector  `json:",omitempty"`
}

// Learnt returns what the profile's plugins have learnt; nil if they have learnt nothing, or were
// told what comes. Shapes come most frequent first, so that the same state is written the same.
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

// Relearn takes in what the profile's plugins had learnt before, unless they are told what comes,
// or now look at other devices. It replaces what they know. Fading comes no later than it would by
// the half-life that now counts.
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
