package gang

import (
	"fmt"
	"strings"
	"time"
)

// Verdict is what an attempt came to that placed too few members.
type Verdict struct {
	Tried, Needed int
	Fit           int // that found a node in the first pass, in the best domain
	NotReached    int // that were not looked at

	// Domains counts those of the topology key; 0 if the group has none. NoDomain says that no node
	// is in one.
	Domains  int
	NoDomain string
	// Stopped is the first member that fits nowhere; nil if none was found.
	Stopped *Member
	// Delay is how long the group has to be unschedulable before pods leave for it, if it has not
	// been.
	Delay time.Duration
	// Searched is how many judgements the search ended at; 0 if it came to its end.
	Searched int

	// Cut: domains were left out for now. Shortened: the attempt ended at its bound. Further: the
	// next one may come further. Conclude sets it.
	Cut, Shortened, Further bool
}

// Verdict returns what the attempt has come to so far.
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

// Conclude ends an attempt that placed nothing. It returns the verdict, and what the next attempt
// has to know.
func (a *Attempt) Conclude() (*Verdict, Memory) {
	next := a.bound.conclude(a.InDomains())
	return a.Verdict(), next
}

// IsTriedAgain tells whether the group is tried again after its back-off, whatever happens.
func (v *Verdict) IsTriedAgain() bool { return v.Cut || v.Further }

// Reason returns why the group as a whole is not placed: how many of its pods fit, and what stopped
// the next one.
func (v *Verdict) Reason() string {
	if v.Tried < v.Needed {
		return fmt.Sprintf("%d more pods are needed at once, and %d may be scheduled now; "+
			"the others are kept out by gates of their own", v.Needed, v.Tried)
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

// writeFit writes how many pods fit, and why the first of the others does not.
func (v *Verdict) writeFit(b *strings.Builder) {
	if v.Domains > 0 {
		fmt.Fprintf(b, "0/%d placements are available, in the best one ", v.Domains)
	}
	needed := "1 is"
	if v.Needed > 1 {
		needed = fmt.Sprintf("%d are", v.Needed)
	}
	fmt.Fprintf(b, "%d of %d pods fit, %s needed at once", v.Fit, v.Tried, needed)

	if m := v.Stopped; m != nil {
		fmt.Fprintf(b, "; %s/%s: %s", m.Pod.Namespace, m.Pod.Name, m.Failure.Message(""))
	} else {
		b.WriteString(".")
	}
}

// writeBound writes what the attempt did not come to, and when that is made up for.
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
