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

// runOutOfTree runs an out-of-tree plugin at PodGroupPostFilter.
func (a *groupAttempt) runOutOfTree(by GroupPostFilterer) groupPostFilterOutcome {
	r := by.RunGroupPostFilter(a.shown)
	outcome := groupPostFilterOutcome{message: r.Message, final: r.Final || r.Helped, err: r.Err}
	if r.Helped {
		outcome.nodes = map[types.UID]string{}
		for _, m := range a.members {
			if node := r.Nodes[m.Pod.UID]; a.cluster.Node(node) != nil {
				outcome.nodes[m.Pod.UID] = node
			}
		}
	}
	return outcome
}

// preemptByPlan implements DefaultPreemption: it plans the victims for the group as a whole.
func (a *groupAttempt) preemptByPlan() groupPostFilterOutcome {
	began := a.clock()
	plan := a.planRoom()
	outcome := searchOutcome(a.attempt, plan)
	a.observePlan(plan, outcome, a.clock().Sub(began))
	return groupPostFilterOutcome{plan: plan, toMembers: a.words().wordsOf(outcome), alone: outcome == Unresolvable, final: plan != nil}
}

// searchOutcome returns the result of the search for victims.
func searchOutcome(attempt *gang.Attempt, plan *gang.RoomPlan) PreemptionOutcome {
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
	p := Preempted{Group: true, Status: outcome, Searched: a.attempt.MayPreempt(), Took: took}
	if plan != nil {
		p.Violations = a.podGroups.units.CountViolations(plan.Victims)
		for _, unit := range plan.Victims {
			p.Victims += len(unit)
			if g := a.groups.GroupOf(unit[0].UID()); g != nil && g.Whole() {
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
	holds := func(m *member) bool { return hasClaims(m) && plugins.HoldsDevices(a.attempts.cluster, m.Waiting) }
	if !slices.ContainsFunc(a.members, holds) {
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
		if m.Node != "" || !holds(m) || m.asked.Failure == nil || m.asked.Failure.Nodes == 0 {
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

// treeRoom is package gang's view of a tree.
type treeRoom struct{ *treeAttempt }

// Place places the tree in upstream's order, or in any order if anyhow is set.
func (t treeRoom) Place(anyhow bool) bool {
	place := func() (bool, error) { return t.placeTree(placeOptions{}) }
	if anyhow {
		place = t.placeInSomeOrder
	}
	settled, err := place()
	return err == nil && settled
}

// PlaceWith places the tree in upstream's order, with preemption.
func (t treeRoom) PlaceWith(room *gang.TreeRoom) bool {
	settled, err := t.placeTree(placeOptions{preemption: room})
	return err == nil && settled
}

// Rewind takes the tree off its nodes.
func (t treeRoom) Rewind() { t.rewind(t.root) }

// Placed lists the attempts of the placed groups.
func (t treeRoom) Placed() (list []*gang.Attempt) {
	for _, a := range t.leaves {
		if len(a.attempt.Placed()) > 0 {
			list = append(list, a.attempt)
		}
	}
	return list
}

// Remember returns a function restoring the current placement of the groups.
func (t treeRoom) Remember() (restore func()) { return t.remember() }

// asOne returns an attempt for all pods of the tree together. It does not decide any pods.
func (t *treeAttempt) asOne() *gang.Attempt {
	r := t.requestFor(t.leaves)
	r.Eligible, r.Need = nil, t.countNeeded(t.whole)
	r.Limits, r.Earlier = t.limits, gang.Memory{Shortened: t.root.Shortened}
	return gang.New(r)
}

// planRoom plans the victims for the tree. It returns nil if preemption would not help, or if the
// tree may fit after a longer search, which the next attempt makes first. It leaves the state of
// the tree unchanged.
func (t *treeAttempt) planRoom() *gang.RoomPlan {
	if t.root == nil {
		return t.leaves[0].planRoom()
	}
	if t.shortened && t.root.Shortened < gang.MostDoublings {
		return nil
	}
	all := t.asOne()
	if !all.MayPreempt() {
		return nil
	}

	began := t.clock()
	t.preemptions.forgetCounted()
	restore := t.remember()
	t.beginPart()
	plan := all.PlanTree(treeRoom{t})
	shortened := t.shortened || all.Verdict().Shortened
	restore()
	t.shortened = t.shortened || plan == nil && shortened

	if lead := t.leaves[0]; !lead.trial {
		lead.observePlan(plan, searchOutcome(all, plan), t.clock().Sub(began))
	}
	return plan
}

// placeAs counts the pods on the nodes of a plan. If that fails, it returns false, and no pod is
// placed.
func (t *treeAttempt) placeAs(plan *gang.RoomPlan) bool {
	for _, a := range t.leaves {
		own := &gang.RoomPlan{}
		for _, p := range plan.Places {
			if a.byAsked[p.Member] != nil {
				own.Places = append(own.Places, p)
			}
		}
		if len(own.Places) > 0 && !a.attempt.PlaceAs(own) {
			t.rewind(t.root)
			return false
		}
	}
	return true
}
