// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/decision"
)

// This file reports the live scheduler's record of the pod, if requested: its last decision and the
// pod's place in its queue. Both are history; the rest of an explanation is about now.

// adoptDecision adopts the live scheduler's record if it concerns this very pod, rather than an
// earlier pod with the same name. The record takes precedence over the pod's condition, which is
// older and less detailed.
func (e *explainer) adoptDecision() {
	d := e.options.Decided
	// The record of an earlier pod with this name does not apply.
	if d == nil || d.UID != e.object.UID {
		return
	}

	e.out.Decision = d
	if d.Queue != nil {
		e.out.wakes = e.wakesOf(d.Queue.Wakes)
	}

	// The scheduler has the pod in its queue, but has not decided about it yet.
	if d.At == nil {
		return
	}
	// The condition of a placed pod lacks a reason.
	reason := ""
	switch d.Result {
	case decision.Unschedulable:
		reason = v1.PodReasonUnschedulable
	case decision.Failed:
		reason = v1.PodReasonSchedulerError
	}

	e.out.LastDecision = &LastDecision{At: *d.At, Reason: reason, Message: d.Message}
}

// wakesOf replaces the events in the scheduler's record with their descriptions by the plugins. It
// keeps the events of a plugin that does not describe them, and lists each wake once.
func (e *explainer) wakesOf(list []decision.Wake) (wakes []Wake) {
	// The descriptions are from this binary's plugins; the scheduler may run different ones.
	profile := e.w.Profile(e.object.Spec.SchedulerName)
	for _, w := range list {
		wake := Wake{Plugin: w.Plugin, Events: w.Events}
		if profile != nil {
			if described := wakesBy(profile, w.Plugin); len(described) > 0 {
				wake.Events = described
			}
		}
		if !slices.ContainsFunc(wakes, func(o Wake) bool { return o.Plugin == wake.Plugin && slices.Equal(o.Events, wake.Events) }) {
			wakes = append(wakes, wake)
		}
	}
	return wakes
}

// noteHolds records whether the engine would make the same decision now. A decision about a pending
// pod is the same if its message is equal; a decision about a placed pod is the same if its node is
// still among the best. Without a last decision, noteHolds does nothing.
func (e *explainer) noteHolds(same bool) {
	if e.out.LastDecision == nil {
		return
	}
	// Another client may have bound the pod to a different node.
	if d := e.out.Decision; d != nil && d.Result == decision.Placed {
		same = same && d.Node == e.out.Pod.Node
	}
	e.out.LastDecision.Holds = same
}

// printDecision prints the decision recorded by the scheduler: time, outcome, victims and wake
// events.
func (p printer) printDecision(e *Explanation) {
	d := e.Decision
	if d.At != nil {
		p.Line("\n%s", decidedLine(d, e.LastDecision != nil && e.LastDecision.Holds, e.Message))
	}

	// The scheduler may have cleared the nomination since.
	if len(d.Victims) > 0 {
		names := answer.Mapped(d.Victims, func(v decision.Name) string { return v.Namespace + "/" + v.Name })
		p.Line("To make room on %s, it preempted %s.", cmp.Or(d.NominatedNode, "a node"), strings.Join(names, ", "))
	}

	if d.Queue != nil {
		p.schedulersQueue(d.Queue, e.wakes)
	}
	if d.Group != nil {
		p.Line("%s", groupLine(d.Group))
	}

	if d.Held != nil {
		p.Line("%s", heldLine(d))
	}
}

// heldLine describes the room that is held for a pod group. d.Held must be set.
func heldLine(d *decision.Decision) string {
	whom := fmt.Sprintf("pod group %s/%s, which has been waiting for long: this pod cannot use it",
		d.Held.Group.Namespace, d.Held.Group.Name)
	if d.Held.Composite {
		whom = "composite " + whom
	}
	if d.Group != nil && d.Held.Group == (decision.Name{Namespace: d.Namespace, Name: d.Group.Name}) {
		whom = "its pod group"
	}
	line := fmt.Sprintf("Until %s at the latest, room on %s is held for %s.", formatTime(d.Held.Until.Time),
		strings.Join(d.Held.Nodes, ", "), whom)
	if start := d.Held.ExpectedStart; !start.IsZero() {
		line += " The group is expected to start by " + formatTime(start.Time) + "."
	}
	return line
}

// groupLine describes the group as the scheduler saw it: the number of its pods with a node, and
// its reason for waiting.
func groupLine(g *decision.Group) string {
	if g.Missing {
		return fmt.Sprintf("It names pod group %s, which does not exist: its pods are not scheduled until it does.", g.Name)
	}
	line := fmt.Sprintf("It belongs to pod group %s: %d of %s placed", g.Name, g.Placed, answer.Count(g.Members, "pod"))
	if g.MinCount > 0 {
		line += fmt.Sprintf(", minCount %d", g.MinCount)
	}
	switch {
	// The group has been scheduled once, so its size no longer matters.
	case g.Scheduled:
		line += ". The group was scheduled, so its new pods are scheduled one by one"
	case g.Members < g.MinCount:
		line += fmt.Sprintf(". The group is not tried before it has %s", answer.Count(g.MinCount, "pod"))
	case g.Message != "":
		line += ". It is pending: " + strings.TrimSuffix(g.Message, ".")
	}
	return line + "."
}

// decidedLine describes when and how the scheduler decided, and whether the decision still holds.
// It omits the decision's message if it equals message, which the explanation prints elsewhere.
func decidedLine(d *decision.Decision, holds bool, message string) string {
	still := "This still holds"
	if !holds {
		still = "The cluster has changed since; the explanation above reflects its current state"
	}
	how := ""
	switch d.Result {
	case decision.Placed:
		how = fmt.Sprintf("chose %s", d.Node)
		if d.Feasible == 1 {
			how += fmt.Sprintf(", the only one of %s that could take it", answer.Count(d.Nodes, "node"))
		} else if d.Feasible > 1 {
			how += fmt.Sprintf(", one of the %d of %d nodes that could take it", d.Feasible, d.Nodes)
		}
		// The score is 0 if no node was scored.
		if d.Score > 0 {
			how += fmt.Sprintf(", with a score of %d", d.Score)
		}
	case decision.Unschedulable, decision.Failed:
		if how = "returned it to the queue"; message != d.Message { // the current message is printed below
			how += ": " + strings.TrimSuffix(d.Message, ".")
		}
	}
	took := time.Duration(d.Took * float64(time.Second)).Round(time.Microsecond)
	return fmt.Sprintf("The scheduler last decided it at %s, in %v, and %s. %s.", formatTime(d.At.Time), took, how, still)
}

// formatTime formats a time in UTC, like all times of an explanation.
func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// schedulersQueue prints the pod's place in the live scheduler's queue, and the events that would
// wake it.
func (p printer) schedulersQueue(q *decision.Queue, wakes []Wake) {
	// The keys are the names of the queues.
	where := map[string]string{
		"active": answer.Count(q.Ahead, "other") + " before it", "backoff": "it is in back-off",
		"unschedulable": "it is retried after an event that can help",
		"gated":         "the gate " + q.Gate + " holds it back", "taken": "it is being decided or bound",
	}[q.Place]
	text := fmt.Sprintf("In the scheduler's queue since %s, %s: %s", formatTime(q.Since.Time),
		answer.Count(q.Attempts, "attempt"), cmp.Or(where, q.Place))
	// NotBefore is set only while the pod is in back-off.
	if q.NotBefore != nil {
		text += fmt.Sprintf(", not tried before %s", q.NotBefore.UTC().Format("15:04:05Z"))
	}
	if q.NotAfter != nil {
		text += fmt.Sprintf(", and by %s at the latest", q.NotAfter.UTC().Format("15:04:05Z"))
	}
	p.Line("%s.", text)
	p.printWakes(wakes)
}
