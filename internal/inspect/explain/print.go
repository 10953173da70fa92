// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
)

// This file prints an explanation as text: the state in one sentence, the reasons, the awaited
// events, and the suggestions. It omits empty parts.

// Names returns the pod in the format of kubectl -o name, for answer.Named.
func (e *Explanation) Names() []string { return []string{"pod/" + e.Pod.Name} }

// Write writes the explanation in one of answer.Formats or as a name, and otherwise as text. Format
// wide lists all nodes of a group.
func (e *Explanation) Write(out io.Writer, format string) error {
	return answer.Write(out, format, e, func(text *answer.Page) { e.tell(text, format == "wide") })
}

func (e *Explanation) tell(page *answer.Page, wide bool) { printer{page, wide}.printExplanation(e) }

// printer prints one explanation.
type printer struct {
	*answer.Page
	wide bool
}

// printColumns prints an indented table.
func (p printer) printColumns(rows [][]string) { p.Table("  ", rows) }

// printExplanation prints all sections of the explanation.
func (p printer) printExplanation(e *Explanation) {
	p.Heading("pod %s/%s: %s", e.Pod.Namespace, e.Pod.Name, e.State)
	p.Line("%s", e.Summary)
	if e.Eviction != nil {
		p.printEviction(e.Eviction)
	}

	if len(e.Scores) > 0 {
		p.printScores(e)
	}
	if len(e.Groups) > 0 {
		p.printGroups(e)
	}

	if e.Preemption != nil && e.Nodes > 0 {
		p.printPreemption(e)
	}
	// The live scheduler's queue, if requested, replaces this one.
	if q := e.Queue; q != nil && (e.Decision == nil || e.Decision.Queue == nil) {
		p.Line("\nPlace in the queue: %d of %d (%d ahead by priority, %d by age).", q.Position, q.Length, q.AheadByPriority, q.AheadByAge)
		// Without rejections, the pod waits only for its turn.
		if len(q.Wakes) > 0 {
			p.Line("It is retried when one of these happens, and after five minutes at the latest:")
		}
		p.printWakes(q.Wakes)
	}

	if e.Decision != nil {
		p.printDecision(e)
	}
	if len(e.Suggestions) > 0 {
		p.printSuggestions(e)
	}
	p.printWithheld(e)
	printGroupSuggestions(p.Page, "its pod group", e.GroupSuggestions)

	if e.Node != nil {
		p.printNode(e.Node)
	}
	// Users search for the exact message from the events of the cluster.
	if e.Message != "" && !strings.Contains(e.Summary, e.Message) {
		p.Line("\nThe scheduler's message: %s", e.Message)
	}

	// A last message that differs from the current message explains what users have seen.
	if l := e.LastDecision; l != nil && e.Decision == nil && !l.Holds && l.Message != "" && l.Message != e.Message {
		p.Line("Its last message, at %s: %s", l.At.UTC().Format("2006-01-02 15:04:05Z"), l.Message)
	}
	if e.Source.From != "" {
		p.Line("\n%s.", e.Source)
	}
}

// printEviction prints when and why the pod must leave, and the changes that would let it stay.
func (p printer) printEviction(e *Eviction) {
	if e.Device != "" {
		p.Line("\nIt has to leave at %s, in %s, because of the taint %s of its device %s, there since %s.",
			e.Due.UTC().Format("2006-01-02 15:04:05Z"),
			answer.Duration(e.In.Duration()), e.Taint, e.Device, e.Since.UTC().Format("15:04:05Z"))
		return
	}
	tolerated := ", which it does not tolerate"
	if seconds := e.TolerationSeconds; seconds != nil {
		tolerated = ", which it tolerates for " + answer.Duration(time.Duration(*seconds)*time.Second)
	}
	p.Line("\nIt has to leave at %s, in %s, because of the taint %s, there since %s%s.",
		e.Due.UTC().Format("2006-01-02 15:04:05Z"), answer.Duration(e.In.Duration()), e.Taint,
		e.Since.UTC().Format("15:04:05Z"), tolerated)
	p.Line("What would let it stay:")
	for _, c := range e.Cancel {
		p.Line("  - %s", c.Text)
		if c.Command != "" {
			p.Command("    ", c.Command) // on a separate line, so that it can be copied
		}
	}
}

// printScores prints a table of plugins by nodes, so that each row compares the nodes. An asterisk
// marks the pod's own node.
func (p printer) printScores(e *Explanation) {
	plugins := map[string]bool{}
	for _, s := range e.Scores {
		for name := range s.Scores {
			plugins[name] = true
		}
	}

	// Without competition there are no scores.
	if len(plugins) == 0 {
		p.Line("\nOnly %s can take it, so nothing was scored.", e.Scores[0].Node)
		return
	}

	p.Line("\nScores of the best of the %s that can take it:", answer.Count(e.Feasible, "node"))
	rows := [][]string{{"PLUGIN"}}
	for _, s := range e.Scores {
		// The asterisk marks the pod's own node.
		name := s.Node
		if s.Own {
			name += "*"
		}
		rows[0] = append(rows[0], name)
	}

	for _, name := range sortedKeys(plugins) {
		scores := answer.Mapped(e.Scores, func(s Score) string { return fmt.Sprint(s.Scores[name]) })
		rows = append(rows, append([]string{name}, scores...))
	}

	totals := answer.Mapped(e.Scores, func(s Score) string { return fmt.Sprint(s.Total) })
	p.printColumns(append(rows, append([]string{"TOTAL"}, totals...)))
	for _, s := range e.Scores {
		for _, name := range sortedKeys(s.Words) {
			p.Line("%s: %s: %s.", s.Node, name, s.Words[name])
		}
	}
}

// printGroups prints the nodes that reject the pod, one line for each reason.
func (p printer) printGroups(e *Explanation) {
	p.Line("\nNodes that cannot take it (%d of %d):", e.Nodes-e.Feasible, e.Nodes)
	rows := [][]string{{"COUNT", "PLUGIN", "CODE", "REASON", "NODES"}}
	for _, g := range e.Groups {
		reason, details := strings.Join(g.Reasons, ", "), g.Detail
		// A single detail for all nodes of the group fits into its line.
		if len(details) == 1 {
			reason, details = reason+": "+details[0], nil
		}

		// Details that vary by node take separate lines: joined, they would be wider than any
		// terminal.
		rows = append(rows, []string{fmt.Sprint(g.Count), cmp.Or(g.Plugin, "-"), g.Code, reason, p.joinNames(g.Nodes)})
		for _, detail := range details {
			rows = append(rows, []string{"", "", "", "  " + detail, ""})
		}
	}
	p.printColumns(rows)
}

// joinNames joins the names of nodes. Without wide, it omits all but the first three.
func (p printer) joinNames(nodes []string) string {
	const most = 3
	if !p.wide && len(nodes) > most {
		return strings.Join(nodes[:most], ",") + ",..."
	}
	return strings.Join(nodes, ",")
}

// printPreemption prints whether preemption helps, and its victims.
func (p printer) printPreemption(e *Explanation) {
	found := e.Preemption
	switch {
	// Do not repeat a part of the message.
	case !found.Helps && strings.Contains(e.Message, found.Message):
		p.Line("\nPreemption does not help.") // the scheduler's message gives the reason
		return
	case !found.Helps:
		p.Line("\nPreemption does not help: %s", found.Message)
		return
	}
	names := answer.List(len(found.Victims), func(i int) string { return found.Victims[i].Namespace + "/" + found.Victims[i].Name })
	p.Line("\nPreemption helps: on node %s, removing %s.", found.Node, names)
	if found.Violations > 0 {
		p.Line("It violates the disruption budget of %d of them.", found.Violations)
	}
}

// printWakes prints, for each plugin, the events that can change its verdict.
func (p printer) printWakes(list []Wake) {
	for _, w := range list {
		p.Line("  - for %s: %s", w.Plugin, cmp.Or(strings.Join(w.Events, "; "), "events that this plugin does not describe"))
	}
}

// printSuggestions prints the numbered suggestions with their commands, and the object to change
// for changes of the pod.
func (p printer) printSuggestions(e *Explanation) {
	without := ""
	if e.Preemption != nil && e.Preemption.Helps {
		without = " without preemption"
	}
	p.Line("\nAny one of these would let it run%s, the smallest change first:", without)
	for i, s := range e.Suggestions {
		then := fmt.Sprintf(" (then on %s)", s.Node)
		added := slices.ContainsFunc(s.Changes, func(c Change) bool { return c.Kind == "AddNode" }) // its name is not known yet
		if added || strings.HasSuffix(s.Text, fmt.Sprintf(" (on %s)", s.Node)) {
			then = ""
		}
		p.Line("  %d. %s%s", i+1, s.Text, then)
		if command := s.Command(); command != "" {
			p.Command("     ", command)
		}
	}
	// Only changes of the pod itself need the note; nodes are changed directly.
	changesPod := func(c Change) bool {
		return strings.HasPrefix(c.Object, "pod/") && len(c.Delete) == 0 && c.Patch != nil
	}
	if slices.ContainsFunc(e.Suggestions, func(s Suggestion) bool { return slices.ContainsFunc(s.Changes, changesPod) }) {
		p.Line("  %s", e.where)
	}
}

// printWithheld prints the first withheld change for each of the first three reasons.
func (p printer) printWithheld(e *Explanation) {
	if len(e.Withheld) == 0 {
		return
	}
	const most = 3
	p.Line("\nNot suggested, because the pod would not run:")
	var reasons []string
	for _, w := range e.Withheld {
		if !slices.Contains(reasons, w.Reason) && len(reasons) < most {
			reasons = append(reasons, w.Reason)
			p.Line("  - %s: %s", w.Text, w.Reason)
		}
	}
	if more := len(e.Withheld) - len(reasons); more > 0 {
		p.Line("  and %s", answer.Count(more, "other change"))
	}
}

// printNode prints every plugin's verdict on one node.
func (p printer) printNode(n *NodeReport) {
	// A feasible node has a total and a rank.
	verdict := "cannot take it"
	if n.Feasible {
		verdict = fmt.Sprintf("can take it: total %d, rank %d", *n.Total, n.Rank)
	}

	p.Line("\nNode %s %s. Verdicts of all plugins:", n.Name, verdict)
	rows := [][]string{{"PLUGIN", "VERDICT", "SCORE", "WHY"}}
	for _, w := range n.Plugins {
		verdict, score, why := "ok", "-", ""
		if w.Rejects {
			verdict, why = "no", strings.Join(w.Reasons, ", ")
			if w.Detail != "" {
				why += ": " + w.Detail
			}
		}
		// Filter-only plugins do not score.
		if w.Score != nil {
			score = fmt.Sprint(*w.Score)
		}
		rows = append(rows, []string{w.Plugin, verdict, score, why})
	}

	p.printColumns(rows)
	if n.Preempt != "" {
		p.Line("Preemption there: %s", n.Preempt)
	}
}
