package trial

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// The version and kinds of documents. Fields may be added, but are never renamed or removed.
const (
	APIVersion = "berth.dev/v1alpha1"
	Kind       = "Trial"
)

// Course is what became of the pods in one course of events: the day as one
// configuration has it.
type Course struct {
	Began, Ended time.Time
	// Pods are the pods that were scheduled here, by UID.
	Pods map[types.UID]*Fate
	// Preempted are the victims, in order, but for those that were made in the place of others,
	// which PreemptedAgain counts.
	Preempted      []Name
	PreemptedAgain int
	// Unserved counts the pods that the journal's scheduler served and this course's
	// does not, by scheduler name. They stay pending.
	Unserved map[string]int
	// Nodes is how many nodes had pods of this course at the end.
	Nodes int

	// again numbers the replacements that were made here. recordedPreempted is how
	// many victims the journal has.
	again             int
	recordedPreempted int
}

// Name names a pod.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// compare orders by namespace, then by name.
func (n Name) compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// Fate is what became of a pod.
type Fate struct {
	Name
	// Since is when it could first be scheduled, and Placed when it was; zero if it was not.
	Since, Placed time.Time
	Node          string
	Gone          time.Time // zero if it is there at the end
	Preempted     bool
	Again         bool   // it was made in the place of a victim
	Recorded      string // the node that it was bound to when the journal was written
}

// newFate adds a pod that can be scheduled from now on.
func (c *Course) newFate(p *v1.Pod, now time.Time) *Fate {
	f := &Fate{Name: Name{p.Namespace, p.Name}, Since: now}
	c.Pods[p.UID] = f
	return f
}

// closeDay records the end of the course: the state after the last record.
func (d *day) closeDay() {
	d.course.Ended = d.now
	for _, n := range d.core.View().Cluster.SortedNodes() {
		if slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { return d.course.Pods[p.UID] != nil }) {
			d.course.Nodes++
		}
	}
}

// waitedUntil is how long the pod was pending: until it was placed or deleted, or
// else until the end of the course.
func (f *Fate) waitedUntil(end time.Time) time.Duration {
	switch {
	case !f.Placed.IsZero():
		end = f.Placed
	case !f.Gone.IsZero():
		end = f.Gone
	}
	return max(end.Sub(f.Since), 0)
}

// isPending reports whether the pod is pending at the end.
func (f *Fate) isPending() bool { return f.Placed.IsZero() && f.Gone.IsZero() }

// Comparison is the difference between two courses of the same day. Both were played,
// so that simulated answers are alike in both; how far they agree with what was
// recorded is told by Agreed and RecordedPreempted.
type Comparison struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Before     Summary `json:"before"` // under the configuration of the journal
	After      Summary `json:"after"`  // under the other one
	// Recorded is how many pods were bound in the journal. Agreed is how many of them go to the
	// same node when the day is replayed under its own configuration: a measure of how far the
	// simulated answers can be trusted.
	Recorded int `json:"recorded"`
	Agreed   int `json:"agreed"`
	// RecordedPreempted is how many pods were preempted in the journal: the same measure for
	// Before.Preempted.
	RecordedPreempted int `json:"recordedPreempted"`
	// Unserved counts the pods that the other configuration has no profile for, by scheduler name.
	Unserved map[string]int `json:"unserved,omitempty"`

	Elsewhere []Moved  `json:"elsewhere"`
	Longer    []Waited `json:"longer"` // by a second at least
	Shorter   []Waited `json:"shorter"`
	// Preempted are the victims under the other configuration only, NoLonger those under the
	// journal's only: pods that the journal has, and none that were made in the place of victims.
	Preempted []Name `json:"preempted"`
	NoLonger  []Name `json:"noLongerPreempted"`
	// Pending are the pods that are pending at the end under the other configuration only,
	// NowPlaced those under the journal's only.
	Pending   []Name `json:"pending"`
	NowPlaced []Name `json:"nowPlaced"`
}

// Summary summarises a course.
type Summary struct {
	Pods      int `json:"pods"`
	Placed    int `json:"placed"`
	Pending   int `json:"pending"`
	Preempted int `json:"preempted"`
	Nodes     int `json:"nodes"` // that had pods at the end
	// How long pods were pending before they were placed, in seconds.
	Median     float64 `json:"medianWait"`
	Percentile float64 `json:"percentile99Wait"`
	Longest    float64 `json:"longestWait"`
}

// Moved is a pod that is placed elsewhere.
type Moved struct {
	Name
	Before string `json:"before"`
	After  string `json:"after"`
}

// Waited is a pod that is pending for longer, or for less time; in seconds.
type Waited struct {
	Name
	Before float64 `json:"before"`
	After  float64 `json:"after"`
}

// sumUp summarises the course. Waits are those of the pods that were placed: a pod
// that is still pending has no wait yet.
func (c *Course) sumUp() Summary {
	s := Summary{Pods: len(c.Pods), Preempted: len(c.Preempted) + c.PreemptedAgain, Nodes: c.Nodes}
	var waits []time.Duration
	for _, f := range c.Pods {
		switch {
		case !f.Placed.IsZero():
			s.Placed++
			waits = append(waits, f.waitedUntil(c.Ended))
		case f.isPending():
			s.Pending++
		}
	}
	slices.Sort(waits)
	if n := len(waits); n > 0 {
		s.Median, s.Percentile, s.Longest = waits[n/2].Seconds(), waits[min(n-1, n*99/100)].Seconds(), waits[n-1].Seconds()
	}
	return s
}

// Compare returns what another configuration changes. before is the course under the
// journal's configuration. Pods that exist in one of the courses only, such as
// replacements of victims, are not compared one by one.
func Compare(before, after *Course) *Comparison {
	c := &Comparison{
		APIVersion: APIVersion, Kind: Kind, Before: before.sumUp(), After: after.sumUp(), Elsewhere: []Moved{},
		Longer: []Waited{}, Shorter: []Waited{},
		Pending: []Name{}, NowPlaced: []Name{}, RecordedPreempted: before.recordedPreempted, Unserved: after.Unserved,
	}

	for uid, was := range before.Pods {
		if was.Recorded != "" {
			c.Recorded++
			if was.Recorded == was.Node {
				c.Agreed++
			}
		}
		if is := after.Pods[uid]; is != nil && !is.Again && !was.Again {
			c.comparePod(before, after, was, is)
		}
	}

	c.Preempted, c.NoLonger = namesWithout(after.Preempted, before.Preempted), namesWithout(before.Preempted, after.Preempted)
	slices.SortFunc(c.Elsewhere, func(a, b Moved) int { return a.compare(b.Name) })
	slices.SortFunc(c.Longer, func(a, b Waited) int {
		return cmp.Or(cmp.Compare(b.After-b.Before, a.After-a.Before), a.compare(b.Name))
	})
	slices.SortFunc(c.Shorter, func(a, b Waited) int {
		return cmp.Or(cmp.Compare(a.After-a.Before, b.After-b.Before), a.compare(b.Name))
	})

	slices.SortFunc(c.Pending, Name.compare)
	slices.SortFunc(c.NowPlaced, Name.compare)
	return c
}

// comparePod compares the fates of a pod in both courses. Waits that differ by less
// than a second are noise.
func (c *Comparison) comparePod(before, after *Course, was, is *Fate) {
	if was.Node != "" && is.Node != "" && was.Node != is.Node {
		c.Elsewhere = append(c.Elsewhere, Moved{was.Name, was.Node, is.Node})
	}
	switch a, b := was.waitedUntil(before.Ended), is.waitedUntil(after.Ended); {
	case b-a >= time.Second:
		c.Longer = append(c.Longer, Waited{was.Name, a.Seconds(), b.Seconds()})
	case a-b >= time.Second:
		c.Shorter = append(c.Shorter, Waited{was.Name, a.Seconds(), b.Seconds()})
	}
	switch {
	case is.isPending() && !was.isPending():
		c.Pending = append(c.Pending, was.Name)
	case was.isPending() && !is.isPending():
		c.NowPlaced = append(c.NowPlaced, was.Name)
	}
}

// namesWithout returns the names in list minus those in other, as multisets: a
// StatefulSet's pod may be a victim more than once.
func namesWithout(list, other []Name) []Name {
	left := map[Name]int{}
	for _, n := range other {
		left[n]++
	}
	only := []Name{}
	for _, n := range list {
		if left[n] > 0 {
			left[n]--
			continue
		}
		only = append(only, n)
	}
	return only
}
