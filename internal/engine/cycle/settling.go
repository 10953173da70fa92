package cycle

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// settleWithin is how long a group, or a tree, whose removals are all answered stays out of the
// queue while some of its victims are still there. Pods without a grace period are gone at once,
// and only their watch events are late: an attempt before the last of them costs as much as the one
// that succeeds. A victim that takes longer is waited for like any other pod: by its events.
const settleWithin = 250 * time.Millisecond

// settling is a round whose removals are all answered. It is kept in rounds until it settles.
type settling struct {
	*round
	preemptor types.UID
	until     time.Time
}

// settleRound ends the round of a group: now if that was over before or has no victims left, else
// when they are gone, or in a moment.
func (pr *preemptions) settleRound(r *removal) {
	s := settling{r.round, r.pod, pr.now.Add(settleWithin)}
	if r.failed || !pr.hasVictims(s.round) {
		pr.endGroupRound(s)
		return
	}
	pr.settling = append(pr.settling, s) // later ones end later
}

// hasVictims tells whether a victim of a round is still on its node.
func (pr *preemptions) hasVictims(r *round) bool {
	for len(r.victims) > 0 {
		last := len(r.victims) - 1
		if p := pr.cluster.Pod(r.victims[last]); p != nil && p.Node != nil {
			return true
		}
		r.victims = r.victims[:last]
	}
	return false
}

// settle ends the rounds that have settled.
func (pr *preemptions) settle() {
	pr.settling = slices.DeleteFunc(pr.settling, func(s settling) bool {
		over := !pr.now.Before(s.until) || !pr.hasVictims(s.round)
		if over {
			pr.endGroupRound(s)
		}
		return over
	})
}

// endGroupRound has a group or a tree tried again.
func (pr *preemptions) endGroupRound(s settling) {
	if pr.rounds[s.preemptor] == s.round {
		delete(pr.rounds, s.preemptor)
	}
	pr.podGroups.wakeMembers(pr.groupFor(s.preemptor), queue.ForceActivate, queue.Gated)
}
