// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"iter"
	"math"
	"math/rand/v2"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/decide"
)

// DefaultSearchLimit is the maximum number of node judgements in the search for a placement, over
// all domains of a topology key. This takes some tens of milliseconds, and suffices to find any
// placement of six pods on six nodes.
const DefaultSearchLimit = 100_000

// DefaultWorkLimit bounds the cost of deciding the members of a group and, separately, of making
// room for them. It is measured in judgements of a node and takes about a tenth of a second. A
// decision costs little if a member is like the previous ones, and a scan of all nodes otherwise.
const DefaultWorkLimit = 1 << 20

// MostDoublings is the maximum number of doublings of a group's bound. The bound doubles after each
// attempt that reaches it.
const MostDoublings = 3

// Limits bound the cost of an attempt, in judgements of a node.
type Limits struct {
	Search int // limit of the search for a placement; trying domains has about the same limit
	Work   int // limit of each part of the attempt; see [Attempt.Begin]
	// Unhurried is set for forecasts, whose attempts do not end early in favor of waiting pods.
	Unhurried bool
}

// The costs of an attempt's steps, in judgements of a node by the plain evaluator.
const (
	costOfDecision   = 10  // deciding about one member
	costOfPreemption = 20  // preemption for one member
	costOfRemoval    = 4   // removing and restoring a pod
	costOfDomain     = 200 // confining members to a domain, and the first decision in it
)

// Memory is the state kept between attempts for a group. The zero value applies to a group that was
// just placed or never tried.
type Memory struct {
	// Shortened counts the attempts that ended at their bound.
	Shortened int
	// Reached holds the nodes found by the last attempt, by pod, if it was shortened.
	Reached map[types.UID]string
}

// Bound ends an attempt that takes too long, since all pods share the deciding goroutine. It has
// two measures. Both are counts, not times, so that a replay ends at the same point as the
// scheduler:
//
//   - the decider's work since the beginning of the current part of the attempt, limited by until;
//   - the effort spent on trying domains or sparing victims, as a rough sum of costs.
//
// After an attempt reaches the bound, the next one may take twice as long, and begins with the
// nodes found so far.
type Bound struct {
	limits  Limits
	decider *decide.Decider // decider whose Work is limited
	rand    *rand.Rand
	members int // number of members to decide
	earlier Memory

	begun   int // the decider's work at the beginning of the current part
	until   int // limit of the decider's work
	effort  int // effort since the current sequence of domains began; see mostEffort
	untried int // remaining domains to try, including the current domain; 0 without domains

	cut       bool                 // domains were skipped because the effort was exhausted
	shortened bool                 // the bound was reached
	further   bool                 // the next attempt may get further; see conclude
	reached   map[types.UID]string // nodes of the members that were counted when the first pass ended early
}

// begin begins a part of the attempt with the whole bound: deciding the members, making room for
// them, or reserving room.
func (b *Bound) begin() {
	b.begun = b.decider.Work()
	b.until = b.begun + b.workLimit()
}

func (b *Bound) workLimit() int {
	if b.limits.Unhurried {
		return math.MaxInt / 2
	}
	return b.limits.Work << min(b.earlier.Shortened, MostDoublings)
}

// isOver reports whether the current part of the attempt must end.
func (b *Bound) isOver() bool { return b.decider.Work() >= b.until }

// extendPart gives the current part at least half of the whole bound from now on. It returns a
// function that restores the previous end.
func (b *Bound) extendPart() (restore func()) {
	until := b.until
	b.until = max(until, b.decider.Work()+b.workLimit()/2)
	return func() { b.until = until }
}

// mostEffort bounds the effort spent on trying domains in sequence, because a group must not delay
// other pods for longer than a tenth of a second. The effort suffices to place each member in a few
// domains.
func (b *Bound) mostEffort() int { return b.limits.Search + costOfDomain + 4*costOfDecision*b.members }

func (b *Bound) addEffort(cost int) { b.effort += cost }

// isSpent reports whether the effort is exhausted, or the bound reached.
func (b *Bound) isSpent() bool { return b.effort >= b.mostEffort() || b.isOver() }

// isSpentTwice is a variant of isSpent for improvements of an existing plan, which may use the same
// effort again.
func (b *Bound) isSpentTwice() bool { return b.effort > 2*b.mostEffort() || b.isOver() }

// isDear reports whether the current part has taken more than some milliseconds, which is too long
// to begin steps that improve a plan only slightly.
func (b *Bound) isDear() bool {
	return b.decider.Work()-b.begun > DefaultWorkLimit/16 || b.effort > DefaultSearchLimit/16
}

// inTurn yields domains in sequence until the effort is exhausted, which sets cut. After half of
// the effort, the remaining domains follow in random order, so that no domain is skipped forever.
// Because a single domain may exhaust the effort, every other attempt uses random order from the
// beginning.
func inTurn[D any](b *Bound, domains []D) iter.Seq[*D] {
	return func(yield func(*D) bool) {
		b.effort = 0
		shuffled := false
		for i := range domains {
			if i > 0 && b.isSpent() {
				b.cut = true
				return
			}

			half := b.effort >= b.mostEffort()/2 || b.decider.Work()-b.begun >= b.workLimit()/2
			if rest := domains[i:]; !shuffled && (half || b.earlier.Shortened%2 == 1) {
				shuffled = true
				b.rand.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
			}

			b.untried = len(domains) - i
			if !yield(&domains[i]) {
				return
			}
		}
	}
}

// conclude records the progress of an attempt that placed nothing, and returns the memory for the
// next one. The next attempt follows after the back-off if it can get further, because its bound is
// larger or fewer members are left to examine. inDomains is set if the reached nodes belong to one
// domain. In another domain they are useless but harmless.
func (b *Bound) conclude(inDomains bool) Memory {
	farther := len(b.reached) > len(b.earlier.Reached)
	b.further = b.shortened && (b.earlier.Shortened < MostDoublings || farther)

	next := b.earlier
	if !inDomains || farther {
		next.Reached = b.reached
	}
	if b.shortened {
		next.Shortened++
	}
	return next
}
