package cycle

import (
	"math"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/decide"
)

// mostWork bounds what it may cost to decide the members of a group, and once more to make room for
// them, in judgements of a node: about a tenth of a second. A decision costs next to nothing where
// other members are alike, and a look at every node where none is. mostDoublings is how often the
// bound of a group is doubled, with each attempt that reaches it.
const (
	mostWork      = 1 << 20
	mostDoublings = 3
)

// begin begins a part of the attempt that has the whole bound.
func (a *groupAttempt) begin() { a.until = a.profile.Work() + a.bound() }

func (a *groupAttempt) bound() int {
	if a.options.Unhurried {
		return math.MaxInt / 2
	}
	return a.mostWork << min(a.group.Shortened, mostDoublings)
}

// over tells whether the bound is reached.
func (a *groupAttempt) over() bool { return a.profile.Work() >= a.until }

// unreached is the failure of members that were not looked at before the bound was reached.
var unreached = &decide.Failure{}

const unreachedMessage = "the attempt for the pod group took too long and ended before this pod was looked at; it is " +
	"tried again after its back-off"

var errUnreached = &Fault{Message: unreachedMessage, Verdict: true}

// stop ends the pass over the members at the bound. In the first one, those that have no node are
// noted as not looked at.
func (a *groupAttempt) stop(rest []*member, first bool) {
	a.shortened = true
	if !first {
		return
	}
	for _, m := range rest {
		if m.Node == "" {
			m.failure = unreached
		}
	}
	a.reached = map[types.UID]string{}
	for _, m := range a.placed {
		a.reached[m.Pod.UID] = m.Node
	}
}

// tryAgain decides a member and counts it on its node. If the last attempt was shortened, and the
// node that it found for the member still takes it, that is the one: so the next attempt gets
// further.
func (a *groupAttempt) tryAgain(m *member) (bool, error) {
	n := a.cluster.Node(a.group.Reached[m.Pod.UID])
	class, p := m.item.Class, a.profile
	if n == nil || class.HasAffinity() || len(class.Spec.TopologySpreadConstraints)+len(class.Spec.ResourceClaims) > 0 ||
		len(p.Outside)+len(p.Extenders) > 0 || !p.Takes(m.asked, n) {
		return a.try(m)
	}
	return a.take(m, decide.Decision{Node: n, Feasible: 1})
}

// noteReached notes how far an attempt came that placed nothing. The next one follows after the
// back-off if it can come further: it may take longer, or has fewer members left to look at.
func (a *groupAttempt) noteReached() {
	g := a.group
	a.further = a.shortened && (g.Shortened < mostDoublings || len(a.reached) > len(g.Reached))
	if a.domains == 0 || len(a.reached) > len(g.Reached) { // in another domain those are of no use, and do no harm
		g.Reached = a.reached
	}
	if a.shortened {
		g.Shortened++
	}
}

// notReached counts the members that were not looked at.
func (a *groupAttempt) notReached() (count int) {
	for _, m := range a.members {
		if m.failure == unreached {
			count++
		}
	}
	return count
}
