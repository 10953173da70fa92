// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"strings"
	"time"
)

// Verdict is the outcome of an attempt that placed too few members.
type Verdict struct {
	Tried, Needed int
	Fit           int // number of members with a node after the first pass, in the best domain
	NotReached    int // number of members not examined

	// Domains counts the domains of the topology key; 0 without a key. NoDomain is the message for
	// a key missing on all nodes.
	Domains  int
	NoDomain string
	// Stopped is the first member that fits nowhere, or nil.
	Stopped *Member
	// Delay is the time for which the group must be unschedulable before pods are evicted for it; 0
	// if this time has passed.
	Delay time.Duration
	// Searched is the number of judgements when the search reached its limit; 0 if it completed.
	Searched int

	// Cut is set if domains were skipped for now. Shortened is set if the attempt ended at its
	// bound, and Further is set if the next attempt may get further. Conclude sets Further.
	Cut, Shortened, Further bool
}

// Verdict returns the outcome so far.
func (a *Attempt) Verdict() *Verdict {
	v := &Verdict{
		Tried: len(a.Members), Needed: a.Need,
		Domains: a.domains.count, NoDomain: a.domains.none,
		Cut: a.bound.cut, Shortened: a.bound.shortened, Further: a.bound.further,
	}
	for _, m := range a.Members {
		switch {
		case m.Failure == nil:
			v.Fit++
		case !m.Reached():
			v.NotReached++
		case v.Stopped == nil:
			v.Stopped = m
		}
	}

	if a.isDelayed() {
		v.Delay = a.Profile.PreemptionDelay
	}
	if a.placer.gaveUp {
		v.Searched = a.placer.searched
	}
	return v
}

// Conclude ends an attempt that placed nothing. It returns the verdict, and the memory for the next
// attempt.
func (a *Attempt) Conclude() (*Verdict, Memory) {
	next := a.bound.conclude(a.InDomains())
	return a.Verdict(), next
}

// IsTriedAgain reports whether the group is retried after its back-off even without an event.
func (v *Verdict) IsTriedAgain() bool { return v.Cut || v.Further }

// Reason explains why the group as a whole is not placed: the number of pods that fit, and the
// failure of the next pod.
func (v *Verdict) Reason() string {
	if v.Tried < v.Needed {
		more := "1 more pod is"
		if v.Needed > 1 {
			more = fmt.Sprintf("%d more pods are", v.Needed)
		}
		return fmt.Sprintf("%s needed at once, and %d may be scheduled now; the others are held back by their own scheduling gates",
			more, v.Tried)
	}
	if v.NoDomain != "" {
		return v.NoDomain
	}

	var b strings.Builder
	v.writeFit(&b)
	if v.Delay > 0 {
		fmt.Fprintf(&b, " No pod is preempted before the group has been unschedulable for %s.", v.Delay)
	}
	if v.Searched > 0 {
		fmt.Fprintf(&b, " The search for other placements ended at its limit, after %d judgements of nodes.", v.Searched)
	}
	v.writeBound(&b)
	return b.String()
}

// writeFit writes the number of pods that fit, and the failure of the first pod that does not fit.
func (v *Verdict) writeFit(b *strings.Builder) {
	if v.Domains > 0 {
		fmt.Fprintf(b, "0/%d placements are available, in the best one ", v.Domains)
	}
	fmt.Fprintf(b, "%d of %d pods fit, %s needed at once", v.Fit, v.Tried, AreNeeded(v.Needed))

	if m := v.Stopped; m != nil {
		fmt.Fprintf(b, "; %s/%s: %s", m.Pod.Namespace, m.Pod.Name, m.Failure.Message(""))
	} else {
		b.WriteString(".")
	}
}

// writeBound writes which parts the attempt skipped, and when they will be examined.
func (v *Verdict) writeBound(b *strings.Builder) {
	if v.NotReached > 0 {
		fmt.Fprintf(b, " It took too long to look at the other %d pods.", v.NotReached)
	} else if v.Shortened {
		b.WriteString(" It took too long to look for all ways to place the pods.")
	}

	switch {
	case v.Cut:
		b.WriteString(" Not all domains could be tried at once; the group is tried again after its back-off.")
	case v.Further:
		b.WriteString(" The group is tried again after its back-off, and the next attempt comes further.")
	case v.Shortened:
		b.WriteString(" A higher --pod-group-search-limit allows more.")
	}
}

// AreNeeded completes the phrase "... needed ..." with a number and a verb.
func AreNeeded(count int) string {
	if count == 1 {
		return "1 is"
	}
	return fmt.Sprintf("%d are", count)
}
