package cycle

import (
	"fmt"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// What members that fit say while their group is not placed: upstream's words for the group. The
// group's own condition is written by package gang, which knows more: what stops the next pod.

const groupUnschedulable = "pod group is unschedulable"

// groupWords makes upstream's words from how an attempt stands. It is made where they are needed,
// and keeps nothing.
type groupWords struct {
	attempt  *gang.Attempt
	group    *groups.Group
	members  []*member
	topology bool // the feature gate is on
}

func (a *groupAttempt) words() groupWords {
	return groupWords{attempt: a.attempt, group: a.group, members: a.members, topology: a.podGroups.gates.Topology}
}

// wordsWith returns upstream's message for a group that is not placed, with what plugins at
// PodGroupPostFilter say.
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

// wordsBefore is that message as far as it does not depend on how many members fit.
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

// quorum is how many pods of the group must have nodes: one of a group without minCount.
func (w groupWords) quorum() int { return max(1, w.group.MinCount()) }

func (w groupWords) hasQuorum() bool { return w.attempt.PlacedBefore >= w.quorum() }

// countAsUpstream counts the members that have a node, and those that upstream does not look at: it
// ends its pass once too few are left.
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

// wordsOf returns what upstream's DefaultPreemption says where it does not help the group. How many
// members fit where all pods that may leave have left is not known here. Where the search ended
// early or is yet to begin, it says nothing.
func (w groupWords) wordsOf(outcome PreemptionOutcome) string {
	const by = "pod group preemption: "
	verdict := w.attempt.Verdict()
	switch {
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
