// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// preemptions makes room for pods that fit nowhere, and tracks the pending removals.
//
// Every victim not withdrawn in the step itself is in exactly one of binding and leaving, until its
// binding is over, a watch shows it terminating or deleted, or its removal is refused. Every round
// has an outstanding removal, or one to be requested at the end of a binding, or it is settling.
type preemptions struct {
	*common
	events      *clusterEvents
	nominations *nominations
	placements  *placements
	podGroups   *podGroups

	// rounds, by preemptor: victims with an outstanding removal. The preemptors are not retried.
	rounds map[types.UID]*round
	// leaving: victims that count as terminating before a watch has shown a deletion timestamp.
	// They are not chosen again.
	leaving map[types.UID]bool
	// binding: victims chosen during their binding. A pod bound all the same is then removed.
	binding map[*placement]*removal
	budgets usedBudgets
	// recount is not after the time at which the first of the budgets' victims has been gone for
	// countedWithin; zero if all still exist.
	recount time.Time
	// keepsBudgets: a profile promises that preemption respects all budgets.
	keepsBudgets bool

	// leavers: the placed Preempted pods, and possibly other pods, filtered out by onTheirWay.
	leavers map[types.UID]bool
	// delays are the profiles' PreemptionDelay, by scheduler name, and alarms the ends of the
	// delays of pods, sorted. The pod of an alarm may be deleted or placed.
	delays map[string]time.Duration
	alarms []delay
	// settling holds groups' rounds waiting only for watch events of their victims' end, sorted by
	// deadline.
	settling []settling
}

// round is one preemption for one pod. It ends with the outcome of the last removal: then the
// preemptor is retried.
type round struct {
	left   int // removals not answered yet
	failed bool
	group  bool // for a pod group or a tree
	began  time.Time

	victims []types.UID // a group's; the last is there, as of the last look
}

// removal is one victim of a preemption. Several preemptors may wait for one victim; each has its
// own removal, and one action is sent.
type removal struct {
	victim     v1.ObjectReference
	generation int64     // the victim's
	preemptor  string    // scheduler name of the preemptor
	pod        types.UID // the preemptor
	message    string
	also       []*removal // of others who chose the victim before its binding was over
	*round
}

// delay is the time at which an unschedulable pod may preempt.
type delay struct {
	until time.Time
	pod   types.UID
}

// usedBudget is a disruption budget reduced by the victims of pending preemptions, like by
// evictions through the Eviction API. Without it, two preemptions in a row could both use the same
// allowance. A victim counts until the API shows the budget again after a watch has shown the
// victim terminating, until it has been gone for countedWithin, or until it turns out that the
// victim stays.
type usedBudget struct {
	shown   *policyv1.PodDisruptionBudget // as the API last showed it
	victims map[types.UID]usedVictim      // without pods already counted by the API
}

// usedVictim is a victim not counted by the API's budget yet.
type usedVictim struct {
	name string
	gone time.Time // since when; zero while it is there
}

// usedBudgets holds the reduced budgets by name.
type usedBudgets map[cluster.Name]*usedBudget

// newPreemptions leaves delays to be set with the profiles.
func newPreemptions(s *common, news *clusterEvents, n *nominations, ps *placements, gs *podGroups) *preemptions {
	return &preemptions{
		common: s, events: news, nominations: n, placements: ps, podGroups: gs,
		rounds: map[types.UID]*round{}, leaving: map[types.UID]bool{}, binding: map[*placement]*removal{}, budgets: usedBudgets{},
		leavers: map[types.UID]bool{},
	}
}
