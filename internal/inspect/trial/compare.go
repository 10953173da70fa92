// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The version and kinds of documents. Fields may be added, but are never renamed or removed.
const (
	APIVersion = "berth.dev/v1alpha1"
	Kind       = "Trial"
)

// Course is the outcome of playing the journal's day under one configuration.
type Course struct {
	Began, Ended time.Time
	// Pods holds the pods scheduled here, by UID.
	Pods map[types.UID]*Fate
	// Preempted lists the victims in order, except for victims that were themselves replacements
	// created in this course. PreemptedAgain counts the latter.
	Preempted      []Name
	PreemptedAgain int
	// Unserved counts the pods served by the journal's scheduler but not in this course, by
	// scheduler name. They stay pending.
	Unserved map[string]int
	// Nodes is the number of nodes with pods of this course at the end.
	Nodes int

	// again numbers the replacements created here. recordedPreempted is the number of victims in
	// the journal.
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

// Fate is the outcome for a pod.
type Fate struct {
	Name
	// Since is the time at which the pod became schedulable, and Placed is the time of its
	// placement, or zero.
	Since, Placed time.Time
	Node          string
	Gone          time.Time // zero if the pod exists at the end
	Preempted     bool
	Again         bool   // the pod was created to replace a victim
	Recorded      string // node bound in the journal
}

// newFate adds a pod that is schedulable from now on.
func (c *Course) newFate(p *v1.Pod, now time.Time) *Fate {
	f := &Fate{Name: Name{p.Namespace, p.Name}, Since: now}
	c.Pods[p.UID] = f
	return f
}

// waitedUntil returns how long the pod was pending: until it was placed or deleted, or else until
// the end of the course.
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

// Comparison is the difference between two courses of the same day. Both were played with simulated
// responses, so that they can be compared; Agreed and RecordedPreempted measure the agreement with
// the recording.
type Comparison struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Before     Summary `json:"before"` // under the journal's configuration
	After      Summary `json:"after"`  // under the other configuration
	// Recorded is the number of pods bound in the journal. Agreed is the number of them placed on
	// the same node when the day is replayed under its own configuration: a measure of the
	// reliability of simulated responses.
	Recorded int `json:"recorded"`
	Agreed   int `json:"agreed"`
	// RecordedPreempted is the number of pods preempted in the journal. Like Agreed, it measures
	// the reliability of simulated responses, by comparison with Before.Preempted.
	RecordedPreempted int `json:"recordedPreempted"`
	// Unserved counts the pods without a profile in the other configuration, by scheduler name.
	Unserved map[string]int `json:"unserved,omitempty"`

	Elsewhere []Moved  `json:"elsewhere"`
	Longer    []Waited `json:"longer"` // by at least a second
	Shorter   []Waited `json:"shorter"`
	// Preempted lists the victims under the other configuration only, and NoLonger lists the
	// victims under the journal's configuration only. Both contain pods of the journal, without
	// replacements of victims.
	Preempted []Name `json:"preempted"`
	NoLonger  []Name `json:"noLongerPreempted"`
	// Pending lists the pods pending at the end under the other configuration only, and NowPlaced
	// lists the pods pending at the end under the journal's configuration only.
	Pending   []Name `json:"pending"`
	NowPlaced []Name `json:"nowPlaced"`
}

// Summary summarises a course.
type Summary struct {
	Pods      int `json:"pods"`
	Placed    int `json:"placed"`
	Pending   int `json:"pending"`
	Preempted int `json:"preempted"`
	Nodes     int `json:"nodes"` // number of nodes with pods at the end
	// The time from pending to placed, in seconds.
	Median     float64 `json:"medianWait"`
	Percentile float64 `json:"percentile99Wait"`
	Longest    float64 `json:"longestWait"`
}

// Moved is a pod placed on different nodes in the two courses.
type Moved struct {
	Name
	Before string `json:"before"`
	After  string `json:"after"`
}

// Waited is a pod that was pending for different times in the two courses. Times are in seconds.
type Waited struct {
	Name
	Before float64 `json:"before"`
	After  float64 `json:"after"`
}

// sumUp summarises the course. Waits cover placed pods only: a pending pod's wait is incomplete.
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

// Compare returns the changes under another configuration. before is the course under the journal's
// configuration. Pods that exist in only one of the courses, such as replacements of victims, are
// not compared individually.
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

// comparePod compares the fates of a pod in both courses. Waits that differ by less than a second
// are noise.
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
