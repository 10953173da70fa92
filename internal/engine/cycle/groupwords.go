package cycle

import "fmt"

// What members that fit say while their group is not placed: upstream's words for the group. The
// group's own condition is written by package gang, which knows more: what stops the next pod.

const groupUnschedulable = "pod group is unschedulable"

// wordsWith returns upstream's message for a group that is not placed, with what plugins at
// PodGroupPostFilter say.
func (a *groupAttempt) wordsWith(said string) string {
	text := a.wordsBefore()
	if !a.hasQuorum() && a.attempt.Verdict().NoDomain == "" {
		scheduled, remaining := a.countAsUpstream()
		text += fmt.Sprintf(": %d scheduled, %d remaining", scheduled, remaining)
	}
	if said != "" {
		text += ", " + said
	}
	return text
}

// wordsBefore is that message as far as it does not depend on how many members fit.
func (a *groupAttempt) wordsBefore() string {
	verdict := a.attempt.Verdict()
	switch {
	case verdict.NoDomain != "":
		return "no feasible placements found"
	case a.hasQuorum():
		return groupUnschedulable
	}
	text := fmt.Sprintf("minCount (%d) cannot be satisfied", a.quorum())
	if !a.podGroups.gates.Topology {
		return text
	}
	return fmt.Sprintf("%s, 0/%d placements are available, first placement status: %s",
		groupUnschedulable, max(1, verdict.Domains), text)
}

// quorum is how many pods of the group must have nodes: one of a group without minCount.
func (a *groupAttempt) quorum() int { return max(1, a.group.MinCount()) }

func (a *groupAttempt) hasQuorum() bool { return a.attempt.PlacedBefore >= a.quorum() }

// countAsUpstream counts the members that have a node, and those that upstream does not look at: it
// ends its pass once too few are left.
func (a *groupAttempt) countAsUpstream() (scheduled, remaining int) {
	scheduled, remaining = a.attempt.PlacedBefore, len(a.members)
	for _, m := range a.members {
		if scheduled+remaining < a.quorum() {
			break
		}
		remaining--
		if m.asked.Failure == nil {
			scheduled++
		}
	}
	return min(scheduled, a.quorum()-1), remaining
}

// wordsOf returns what upstream's DefaultPreemption says where it does not help the group. How many
// members fit where all pods that may leave have left is not known here. Where the search ended
// early or is yet to begin, it says nothing.
func (a *groupAttempt) wordsOf(outcome PreemptionOutcome) string {
	const by = "pod group preemption: "
	verdict := a.attempt.Verdict()
	switch {
	case outcome == FoundVictims:
		return ""
	case outcome == Unresolvable:
		return by + "No preemption victims found for incoming preemptor"
	case !a.attempt.MayPreempt():
		return by + "not eligible due to preemptionPolicy=Never."
	case verdict.Delay > 0, verdict.Shortened:
		return ""
	}
	return by + a.wordsBefore()
}
