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
// all domains of a topology key: some tens of milliseconds, and enough to find any placement of six
// pods on six nodes.
const DefaultSearchLimit = 100_000

// DefaultWorkLimit bounds the cost of deciding the members of a group, and again of making room for
// them, in judgements of a node: about a tenth of a second. A decision costs next to nothing if
// other members are alike, and a scan of all nodes otherwise.
const DefaultWorkLimit = 1 << 20

// MostDoublings is the maximum number of doublings of a group's bound, one after each attempt that
// reaches it.
const MostDoublings = 3

// Limits bound the cost of an attempt, in judgements of a node.
type Limits struct {
	Search int // the search for a placement, and about as much for trying domains
	Work   int // each part of the attempt; see [Bound.Begin]
	// Unhurried attempts do not end for the sake of waiting pods: for forecasts.
	Unhurried bool
}

// The costs of an attempt's steps, in judgements of a node by the plain evaluator.
const (
	costOfDecision   = 10  // about one member
	costOfPreemption = 20  // for one member
	costOfRemoval    = 4   // of a pod, with its return
	costOfDomain     = 200 // to be confined to it, and the first decision there
)

// Memory is the state kept between attempts for a group. The zero value is for a group just placed,
// or never tried.
type Memory struct {
	// Shortened counts the attempts that ended at their bound.
	Shortened int
	// Reached holds the nodes found by the last attempt, by pod, if it was shortened.
	Reached map[types.UID]string
}

// Bound ends an attempt that takes too long, since all pods share the deciding goroutine. It has
// two measures, both of them counts, not times, so that a replay ends at the same point as the
// scheduler:
//
//   - the decider's work since the beginning of the current part of the attempt, up to until;
//   - the effort spent on trying domains or sparing victims, as a rough sum of costs.
//
// After an attempt reaches the bound, the next one may take twice as long, and begins with the
// nodes found so far.
type Bound struct {
	limits  Limits
	decider *decide.Decider // its Work is compared with until
	rand    *rand.Rand
	members int // how many are decided
	earlier Memory

	begun   int // the decider's work when the current part began
	until   int // of the decider's work
	effort  int // since the current turn of domains began; see mostEffort
	untried int // domains that are still to be tried, with the current one; 0 where there are none

	cut       bool                 // domains were left out because the effort was used up
	shortened bool                 // the bound was reached
	further   bool                 // the next attempt may come further; see conclude
	reached   map[types.UID]string // the nodes of members that were counted when the first pass ended early
}

// begin begins a part of the attempt with the whole bound: to decide the members, to make room for
// them, or to reserve it.
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

// mostEffort bounds the effort spent on trying domains in sequence: a group must not delay other
// pods for longer than a tenth of a second. It is enough for a few domains if each member must be
// placed there.
func (b *Bound) mostEffort() int { return b.limits.Search + costOfDomain + 4*costOfDecision*b.members }

func (b *Bound) addEffort(cost int) { b.effort += cost }

// isSpent reports whether the effort is exhausted, or the bound reached.
func (b *Bound) isSpent() bool { return b.effort >= b.mostEffort() || b.isOver() }

// isSpentTwice is isSpent for improvements of an existing plan, with a second allowance of effort.
func (b *Bound) isSpentTwice() bool { return b.effort > 2*b.mostEffort() || b.isOver() }

// isDear reports whether the current part has taken more than some milliseconds: too long for steps
// that only make a plan slightly better.
func (b *Bound) isDear() bool {
	return b.decider.Work()-b.begun > DefaultWorkLimit/16 || b.effort > DefaultSearchLimit/16
}

// endOfSearch returns the limit of judgements for a search, given those taken before: each untried
// domain gets an equal share of the remainder.
func (b *Bound) endOfSearch(taken int) int {
	return taken + (b.limits.Search-taken)/max(1, b.untried)
}

// inTurn yields domains in sequence until the effort is exhausted, which sets cut. After half of
// the effort, the remaining domains follow in random order, so that none is skipped forever; as a
// single domain may exhaust the effort, every other attempt begins in random order.
func inTurn[D any](b *Bound, domains []D) iter.Seq[*D] {
	return func(yield func(*D) bool) {
		b.effort = 0
		shuffled := false
		for i := range domains {
			if i > 0 && b.isSpent() {
				b.cut = true
				return
			}

			if rest := domains[i:]; !shuffled && (b.effort >= b.mostEffort()/2 || b.earlier.Shortened%2 == 1) {
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
// next one. That follows after the back-off if it can get further: it may take longer, or has fewer
// members left to examine. inDomains: the reached nodes belong to one domain. In another one they
// are useless but harmless.
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
