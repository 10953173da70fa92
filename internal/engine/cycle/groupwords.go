// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// This file holds the messages for fitting members of an unplaced group, in upstream's wording. The
// text of the group's own condition comes from package gang, and also names the obstacle for the
// next pod.

const groupUnschedulable = "pod group is unschedulable"

// groupWords derives upstream's wording from the state of an attempt. It is created on use, and
// holds no other state.
type groupWords struct {
	attempt  *gang.Attempt
	group    *groups.Group
	members  []*member
	topology bool // the feature gate is enabled
}

func (a *groupAttempt) words() groupWords {
	return groupWords{attempt: a.attempt, group: a.group, members: a.members, topology: a.podGroups.gates.Topology}
}

// wordsWith returns upstream's message for an unplaced group, with the messages of plugins at
// PodGroupPostFilter.
func (w groupWords) wordsWith(said string) string {
	text := w.wordsBefore()
	if !w.hasQuorum() && w.attempt.Verdict().NoDomain == "" {
		scheduled, remaining := w.countAsUpstream()
		text += fmt.Sprintf(": %d scheduled, %d remaining", scheduled, remaining)
	}
	if said != "" {
		text += ", " + said
	}
	return text
}

// wordsBefore returns the part of wordsWith's message that does not depend on the number of fitting
// members.
func (w groupWords) wordsBefore() string {
	verdict := w.attempt.Verdict()
	switch {
	case verdict.NoDomain != "":
		return "no feasible placements found"
	case w.hasQuorum():
		return groupUnschedulable
	}
	text := fmt.Sprintf("minCount (%d) cannot be satisfied", w.quorum())
	if !w.topology {
		return text
	}
	return fmt.Sprintf("%s, 0/%d placements are available, first placement status: %s",
		groupUnschedulable, max(1, verdict.Domains), text)
}

// quorum returns the number of pods of the group that must have nodes: one for a group without
// minCount.
func (w groupWords) quorum() int { return max(1, w.group.MinCount()) }

func (w groupWords) hasQuorum() bool { return w.attempt.PlacedBefore >= w.quorum() }

// countAsUpstream counts the members with a node, and the members not examined by upstream, which
// stops as soon as too few members remain.
func (w groupWords) countAsUpstream() (scheduled, remaining int) {
	scheduled, remaining = w.attempt.PlacedBefore, len(w.members)
	for _, m := range w.members {
		if scheduled+remaining < w.quorum() {
			break
		}
		remaining--
		if m.asked.Failure == nil {
			scheduled++
		}
	}
	return min(scheduled, w.quorum()-1), remaining
}

// wordsOf returns the message of upstream's DefaultPreemption for a group it does not help. The
// message omits the number of members that would fit without all potential victims, which is
// unknown. The message is empty if the search ended early or has not begun.
func (w groupWords) wordsOf(outcome PreemptionOutcome) string {
	const by = "pod group preemption: "
	switch verdict := w.attempt.Verdict(); {
	case outcome == FoundVictims:
		return ""
	case outcome == Unresolvable:
		return by + "No preemption victims found for incoming preemptor"
	case !w.attempt.MayPreempt():
		return by + "not eligible due to preemptionPolicy=Never."
	case verdict.Delay > 0, verdict.Shortened:
		return ""
	}
	return by + w.wordsBefore()
}

// writeUnscheduled records the reason why a group is not scheduled, and writes it to the group's
// condition. As upstream, the condition of a group that was scheduled once is kept.
func (a *groupAttempt) writeUnscheduled(reason, message string) {
	g := a.group
	if a.podGroups.progress.isPlaced(g) || a.podGroups.progress.isStarted(g) {
		return
	}
	verdict := a.attempt.Verdict()
	g.Last = groups.Attempt{Tried: verdict.Tried, Needed: verdict.Needed, Message: message}
	if reason != v1.PodReasonSchedulerError { // after an error, the state is unknown
		g.Last.Fit = verdict.Fit
	}
	if !g.Done && !g.Scheduled() {
		a.podGroups.writeCondition(g, metav1.ConditionFalse, reason, message)
	}
}
