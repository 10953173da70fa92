// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// groupPostFilterOutcome is a plugin's result for a group that does not fit.
type groupPostFilterOutcome struct {
	nodes   map[types.UID]string // nominated nodes of members, by pod; nil: no nominations
	plan    *gang.RoomPlan       // plan of DefaultPreemption; nil if preemption does not help
	message string
	// toMembers is the message for fitting members, including DefaultPreemption's message if it
	// does not help. The group's own condition is more detailed.
	toMembers string
	alone     bool // upstream calls no further plugin, so members' messages contain no other plugin
	// final: no further plugin is called, because this plugin helped or because no plugin can help.
	final bool
	// err: the plugin failed, which fails the attempt.
	err error
}

// findRoom runs the plugins at PodGroupPostFilter for a group that does not fit, in the order of
// the profile. It joins their results. A final result is returned without the other results.
func (a *groupAttempt) findRoom() (found groupPostFilterOutcome) {
	if len(a.members) < a.attempt.Need {
		return found
	}

	a.attempt.Begin()
	var messages, toMembers []string
	alone := false
	for _, by := range a.profile.groupPostFilters {
		outcome := a.runPostFilter(&by)
		if outcome.err != nil {
			outcome.err = fmt.Errorf("error in %q PodGroupPostFilter plugins: %w", by.plugin, outcome.err)
			return outcome
		}
		if outcome.final {
			outcome.toMembers = cmp.Or(outcome.toMembers, outcome.message)
			return outcome
		}
		if outcome.message != "" {
			messages = append(messages, outcome.message)
		}
		if outcome.alone {
			toMembers, alone = []string{outcome.toMembers}, true
		} else if text := cmp.Or(outcome.toMembers, outcome.message); text != "" && !alone {
			toMembers = append(toMembers, text)
		}
	}

	found.message, found.toMembers = strings.Join(messages, ", "), strings.Join(toMembers, ", ")
	return found
}

// runPostFilter runs one plugin.
func (a *groupAttempt) runPostFilter(by *postFilter[GroupPostFilterer]) groupPostFilterOutcome {
	switch {
	case by.releaser != nil:
		return a.releaseUnusableClaims(by.releaser)
	case by.preempts:
		return a.preemptByPlan()
	}
	return a.runOutOfTree(by.outOfTree)
}

// preemptByPlan implements DefaultPreemption: it plans the victims for the group as a whole.
func (a *groupAttempt) preemptByPlan() groupPostFilterOutcome {
	began := a.clock()
	plan := a.planRoom()
	outcome := outcomeOf(a.attempt, plan)
	a.observePlan(plan, outcome, a.clock().Sub(began))
	return groupPostFilterOutcome{plan: plan, toMembers: a.words().wordsOf(outcome), alone: outcome == Unresolvable, final: plan != nil}
}

// outcomeOf returns the result of the search for victims.
func outcomeOf(attempt *gang.Attempt, plan *gang.RoomPlan) PreemptionOutcome {
	switch {
	case plan != nil:
		return FoundVictims
	case attempt.MayPreempt() && !attempt.HasLower():
		return Unresolvable
	}
	return NoHelp
}

// observePlan reports the result of the search for victims.
func (a *groupAttempt) observePlan(plan *gang.RoomPlan, outcome PreemptionOutcome, took time.Duration) {
	p := Preempted{Group: true, Outcome: outcome, Searched: a.attempt.MayPreempt(), Took: took}
	if plan != nil {
		p.Violations = a.podGroups.units.CountViolations(plan.Victims)
		for _, unit := range plan.Victims {
			p.Victims += len(unit)
			if g := a.groups.GroupOf(unit[0].UID); g != nil && g.Whole() {
				p.Whole++
			}
		}
	}
	a.observer().Preempted(p)
}

// planRoom plans the victims for the members.
func (a *groupAttempt) planRoom() *gang.RoomPlan {
	if !a.attempt.MayPreempt() {
		return nil
	}
	a.preemptions.forgetCounted()
	return a.attempt.PlanRoom()
}

// releaseUnusableClaims runs a plugin that releases devices that members hold but cannot use.
// Meanwhile, fitting members are counted on their nodes. All nodes are considered regardless of the
// topology constraint, so that a claim is not released just because another domain is closest. As
// upstream, the search for room continues afterwards.
func (a *groupAttempt) releaseUnusableClaims(by plugins.ClaimReleaser) (outcome groupPostFilterOutcome) {
	if !a.podGroups.gates.Topology || a.group.Object.Spec.SchedulingConstraints == nil {
		outcome.toMembers = "deallocation and deletion of ResourceClaims completed" // upstream reports this even without claims
	}
	if !slices.ContainsFunc(a.members, hasClaims) {
		return outcome
	}

	a.suspendNominations()
	defer a.resumeNominations()
	defer a.attempt.Rewind()
	if a.attempt.PlaceInClosest() != nil {
		return outcome
	}

	a.events.inPostFilter = true
	defer func() { a.events.inPostFilter = false }()
	for _, m := range a.members {
		if m.Node != "" || !hasClaims(m) || m.asked.Failure == nil || m.asked.Failure.Nodes == 0 {
			continue
		}
		a.profile.Diagnose(m.Waiting) // the plugin uses the results of the latest evaluation
		r := a.attempts.giveBackDevices(m.podAttempt, by)
		if r.Err != nil {
			return groupPostFilterOutcome{err: r.Err}
		}
		if r.Message != "" {
			m.claims = r.Message
		}
		m.asked.Rejectors = gang.WithNames(m.asked.Rejectors, r.Rejectors)
	}
	return outcome
}

func hasClaims(m *member) bool { return len(m.item.Class.Spec.ResourceClaims) > 0 }
