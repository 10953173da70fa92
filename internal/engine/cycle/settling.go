// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// settleWithin is the time a group or tree stays out of the queue after all its removals have
// completed, while some of its victims still exist. Pods without a grace period are deleted
// immediately, and only their watch events are late: an attempt before the last of them costs as
// much as the successful one. A slower victim is awaited like any other pod: by its events.
const settleWithin = 250 * time.Millisecond

// settling is a round with all removals completed. It stays in rounds until it settles.
type settling struct {
	*round
	preemptor types.UID
	until     time.Time
}

// settleRound ends the round of a group: now if it was already over or all its victims are deleted,
// otherwise after their deletion or a short time.
func (pr *preemptions) settleRound(r *removal) {
	s := settling{r.round, r.pod, pr.now.Add(settleWithin)}
	if r.failed || !pr.hasVictims(s.round) {
		pr.endGroupRound(s)
		return
	}
	pr.settling = append(pr.settling, s) // later ones end later
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
