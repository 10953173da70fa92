package gang

import (
	"iter"
	"math"
	"math/rand/v2"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/decide"
)

// DefaultSearchLimit is how many judgements of a node the search for a placement may take, in all
// domains of a topology key together: some tens of milliseconds, and enough to find any placement
// of six pods on six nodes.
const DefaultSearchLimit = 100_000

// DefaultWorkLimit bounds what it may cost to decide the members of a group, and once more to make
// room for them, in judgements of a node: about a tenth of a second. A decision costs next to
// nothing where other members are alike, and a look at every node where none is.
const DefaultWorkLimit = 1 << 20

// MostDoublings is how often the bound of a group is doubled, with each attempt that reaches it.
const MostDoublings = 3

// Limits are what an attempt may cost, in judgements of a node.
type Limits struct {
	Search int // the search for a placement, and about as much for trying domains
	Work   int // each part of the attempt; see [Bound.Begin]
	// Unhurried attempts do not end because others wait: for forecasts.
	Unhurried bool
}

// What the steps of an attempt cost, in judgements of a node by the plain evaluator.
const (
	costOfDecision   = 10  // about one member
	costOfPreemption = 20  // for one member
	costOfRemoval    = 4   // of a pod, with its return
	costOfDomain     = 200 // to be confined to it, and the first decision there
)

// Memory is what earlier attempts for a group leave to the next one. The zero value is that of a
// group that was placed, or never tried.
type Memory struct {
	// Shortened counts the attempts that ended at their bound.
	Shortened int
	// Reached has the nodes that the last attempt had found, by pod, if it did.
	Reached map[types.UID]string
}

// Bound ends an attempt that takes too long, since all pods share the goroutine that decides. There
// are two measures, and both are counts, not times, so that a replay ends where the scheduler did:
//
//   - the work of the decider since the current part of the attempt began, up to until;
//   - the effort that trying domains or sparing victims has taken, as a rough sum of costs.
//
// An attempt that reached the bound may take twice as long the next time, and begins with the nodes
// that it had found.
type Bound struct {
	limits  Limits
	decider *decide.Decider // its Work is what until is compared with
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

// begin begins a part of the attempt that has the whole bound: to decide the members, to make room
// for them, or to reserve it.
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

// isOver tells whether the current part of the attempt has to end.
func (b *Bound) isOver() bool { return b.decider.Work() >= b.until }

// extendPart gives the current part at least half of the whole bound from now on. It returns what
// restores the end that it had.
func (b *Bound) extendPart() (restore func()) {
	until := b.until
	b.until = max(until, b.decider.Work()+b.workLimit()/2)
	return func() { b.until = until }
}

// mostEffort bounds what is spent on trying domains one after the other: a group must not hold the
// others up for longer than a tenth of a second. It is enough for a few domains in which each
// member has to be placed.
func (b *Bound) mostEffort() int { return b.limits.Search + costOfDomain + 4*costOfDecision*b.members }

func (b *Bound) addEffort(cost int) { b.effort += cost }

// isSpent tells whether the effort is used up, or the bound reached.
func (b *Bound) isSpent() bool { return b.effort >= b.mostEffort() || b.isOver() }

// isSpentTwice is isSpent for what follows once a plan is found, and may take as much again.
func (b *Bound) isSpentTwice() bool { return b.effort > 2*b.mostEffort() || b.isOver() }

// isDear tells whether the current part has taken more than some milliseconds: too long for what
// only makes a plan a little better.
func (b *Bound) isDear() bool {
	return b.decider.Work()-b.begun > DefaultWorkLimit/16 || b.effort > DefaultSearchLimit/16
}

// endOfSearch returns how many judgements a search may come to that has taken so many before: each
// domain that is still to be tried gets the same share of what is left.
func (b *Bound) endOfSearch(taken int) int {
	return taken + (b.limits.Search-taken)/max(1, b.untried)
}

// inTurn yields one domain after the other until the effort is used up, which cut then tells. After
// half of it the rest follows at random, so that no domain is left out forever; where one domain
// may take all of it, every other attempt begins at random.
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

// conclude notes how far an attempt came that placed nothing, and returns what the next one has to
// know. That one follows after the back-off if it can come further: it may take longer, or has
// fewer members left to look at. inDomains: the nodes that were reached are those of one domain. In
// another one they are of no use, and do no harm.
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
