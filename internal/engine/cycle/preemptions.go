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

// This file holds the state of preemptions. preempt.go and grouppostfilter.go choose victims, and
// evict.go evicts them. budgets.go reduces the disruption budgets by the pending victims, and
// gentle.go delays preemptions.

// preemptions makes room for pods that fit nowhere, and tracks the pending removals.
//
// Every victim is in either binding or leaving, unless its placement is undone in the same step. It
// stays there until its binding is over, a watch shows it terminating or deleted, or its removal is
// refused. Every round has an outstanding removal, has a removal to be requested at the end of a
// binding or after the write of a nomination, or is settling.
type preemptions struct {
	*common
	events      *clusterEvents
	nominations *nominations
	placements  *placements
	podGroups   *podGroups

	// rounds holds the preemptions with outstanding removals, by preemptor. These preemptors are
	// not retried yet.
	rounds map[types.UID]*round
	// leaving holds the victims that count as terminating although no watch has shown a deletion
	// timestamp yet. They are not chosen again.
	leaving map[types.UID]bool
	// binding holds the victims chosen during their binding. If the binding succeeds, the pod is
	// removed afterwards.
	binding map[*placement]*removal
	budgets usedBudgets
	// recount is the time of the next check of the budgets' victims. It is at or before the
	// earliest time at which a deleted victim has been gone for countedWithin. It is zero if all
	// victims still exist.
	recount time.Time
	// keepsBudgets is set if a profile requires that preemption respects all budgets.
	keepsBudgets bool

	// leavers holds the placed pods being preempted. It may contain other pods, which onTheirWay
	// filters out.
	leavers map[types.UID]bool
	// delays are the profiles' PreemptionDelay, by scheduler name, and alarms are the ends of the
	// pods' delays, sorted. The pod of an alarm may already be deleted or placed.
	delays map[string]time.Duration
	alarms []delay
	// settling holds groups' rounds that only wait for a watch to show the end of their victims,
	// sorted by deadline.
	settling []settling
}

// round is one preemption for a pod, a group or a tree. It ends with the outcome of the last
// removal, after which the preemptor is retried.
type round struct {
	left   int // number of unanswered removals
	failed bool
	group  bool // the preemptor is a pod group or a tree
	began  time.Time

	victims []types.UID // victims of a group; the last one still existed in the last check

	nominating bool // the removals must follow the write of the preemptor's nomination
	held       []*removal
}

// removal is one victim of a preemption. If several preemptors wait for the same victim, each has
// its own removal, but only one action is sent.
type removal struct {
	victim     v1.ObjectReference
	generation int64     // generation of the victim
	preemptor  string    // scheduler name of the preemptor
	pod        types.UID // UID of the preempting pod, PodGroup or CompositePodGroup
	message    string
	also       []*removal // removals of other preemptors that chose the victim during its binding
	*round
}

// preemptor is a preempting pod, group or tree.
type preemptor struct {
	kind    string
	uid     types.UID
	profile string
	node    string // the node on which room is made; "cluster" for a group or a tree
	// nominating: the API lacks the preemptor's nomination, which must precede the removals.
	nominating bool
}

// settling is a round with all removals completed. It stays in preemptions.rounds until it settles.
type settling struct {
	*round
	preemptor types.UID
	until     time.Time
}

// delay is the time at which an unschedulable pod may preempt.
type delay struct {
	until time.Time
	pod   types.UID
}

// usedBudget is a disruption budget reduced by the victims of pending preemptions, as it would be
// by evictions through the Eviction API. Otherwise, two consecutive preemptions could both use the
// same allowance. A victim stops counting in one of three cases: the API shows the budget again
// after a watch has shown the victim terminating, the victim has been gone for countedWithin, or
// the victim is not removed after all.
type usedBudget struct {
	shown   *policyv1.PodDisruptionBudget // latest version observed from the API
	victims map[types.UID]usedVictim      // victims not counted by the API yet
}

// usedVictim is a victim not counted by the API's budget yet.
type usedVictim struct {
	name string
	gone time.Time // time of its deletion; zero while the victim exists
}

// usedBudgets holds the reduced budgets by name.
type usedBudgets map[cluster.Name]*usedBudget
