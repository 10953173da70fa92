// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// settleWithin is the maximum time for which a group or tree stays gated after all its removals
// have completed, while some of its victims still exist. Pods without a grace period are deleted
// immediately, and only their watch events are delayed. An attempt before the last watch event
// would cost as much as the successful attempt. Victims that take longer wake the group by their
// deletion events, as any other pod does.
const settleWithin = 250 * time.Millisecond

// settling is a round with all removals completed. It stays in preemptions.rounds until it settles.
type settling struct {
	*round
	preemptor types.UID
	until     time.Time
}

// settleRound ends the round of a group: immediately if a removal has failed or all victims are
// deleted, otherwise after the deletion of the victims or after settleWithin.
func (pr *preemptions) settleRound(r *removal) {
	s := settling{r.round, r.pod, pr.now.Add(settleWithin)}
	if r.failed || !pr.hasVictims(s.round) {
		pr.endGroupRound(s)
		return
	}
	pr.settling = append(pr.settling, s) // sorted, since later rounds have later deadlines
}

// hasVictims reports whether a victim of a round is still on its node.
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

// settle ends the settled rounds.
func (pr *preemptions) settle() {
	pr.settling = slices.DeleteFunc(pr.settling, func(s settling) bool {
		over := !pr.now.Before(s.until) || !pr.hasVictims(s.round)
		if over {
			pr.endGroupRound(s)
		}
		return over
	})
}

// endGroupRound retries a group or a tree.
func (pr *preemptions) endGroupRound(s settling) {
	if pr.rounds[s.preemptor] == s.round {
		delete(pr.rounds, s.preemptor)
	}
	pr.podGroups.wakeMembers(pr.groupFor(s.preemptor), queue.ForceActivate, queue.Gated)
}
