// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Conditions are the values of --fail-on: moves to make, pods that stay against the policy, and
// constraints still violated after the plan.
var Conditions = []string{"moves", "stays", "violations"}

// Holds reports whether a condition is met. It is false for strings not in Conditions, which the
// command line has already rejected.
func (plan *Plan) Holds(condition string) bool {
	switch condition {
	case "moves":
		return len(plan.Moves) > 0
	case "stays":
		return len(plan.Stays) > 0
	// The gauge of hard constraints is always the first; see bindStrategies.
	case "violations":
		return plan.Measures[0].After > 0
	}
	return false
}

// Names returns the pods to move, in order. They have the form of kubectl -o name, for scripts, and
// likewise omit namespaces.
func (plan *Plan) Names() []string {
	return rules.Mapped(plan.Moves, func(m Move) string { return "pod/" + m.Name })
}

// Write prints the plan in the given format, which is text by default. The format wide is text that
// lists every pod instead of summaries.
func (plan *Plan) Write(out io.Writer, format string) error {
	wide := format == "wide"
	return answer.Write(out, format, plan, func(page *answer.Page) {
		page.Heading("%s", plan.Summary())
		plan.printMoves(page, wide)
		plan.printConsequences(page)
		plan.printStays(page, wide)
		for _, note := range plan.Notes {
			page.Line("note: %s", note)
		}
		if plan.From != "" {
			page.Line("\nRead from %s%s. Nothing was written.", plan.From, plan.asOf())
		}
	})
}

// asOf describes the time of the state, or returns "" if it is unknown.
func (plan *Plan) asOf() string {
	if plan.AsOf.IsZero() {
		return ""
	}
	return " as of " + plan.AsOf.UTC().Format("2006-01-02 15:04:05Z")
}

// Summary summarizes the plan in one line.
func (plan *Plan) Summary() string {
	if len(plan.Moves) == 0 && len(plan.Empties) > 0 {
		return fmt.Sprintf("Nothing has to move: %s empty.", answer.Count(len(plan.Empties), "node"))
	}
	if len(plan.Moves) == 0 {
		return "Nothing can be moved that would land better."
	}
	var better []string
	for _, m := range plan.Measures {
		if m.Before != m.After {
			better = append(better, m.String())
		}
	}
	return fmt.Sprintf("%s: %s.%s", answer.Count(len(plan.Moves), "move"), strings.Join(better, ", "), plan.surgeless())
}

// surgeless lists the pods that leave without the requested additional replica, or returns "". It
// is part of the summary, because it reports an unfulfilled request of the user.
func (plan *Plan) surgeless() string {
	var text []string
	for i := range plan.Moves {
		if m := &plan.Moves[i]; m.NoSurge != "" {
			text = append(text, fmt.Sprintf("%s/%s: %s", m.Namespace, m.Name, m.NoSurge))
		}
	}
	if len(text) == 0 {
		return ""
	}
	return " Cannot surge: " + answer.List(len(text), func(i int) string { return text[i] }) + "."
}

// printMoves prints the table of moves. With wide, each move has a second line with the next best
// candidate.
func (plan *Plan) printMoves(page *answer.Page, wide bool) {
	if len(plan.Moves) == 0 {
		return
	}
	rows := [][]string{{"", "POD", "FROM", "TO", "CAUSE", "WHY", "COST"}}
	for i := range plan.Moves {
		m := &plan.Moves[i]
		to := m.To
		if len(m.Or) > 0 {
			to += " or " + answer.Count(len(m.Or), "other")
		}
		if m.To == "" {
			to = "(removed)"
		}
		cost := m.Cost.String()
		if m.Surge != nil {
			cost = "surge, " + cost
		}
		rows = append(rows, []string{
			strconv.Itoa(m.Number), m.Namespace + "/" + m.Name, m.From, to, m.Cause, cmp.Or(m.Attempt, m.Detail), cost,
		})
		if wide && m.Next != nil {
			rows = append(rows, []string{"", "", "", "", "", fmt.Sprintf("next %s/%s: %s", m.Next.Namespace, m.Next.Name, m.Next.Why), ""})
		}
	}

	page.Line("")
	page.Table("", rows)
}

// printConsequences prints the effects of the plan that the table of moves does not show: emptied
// nodes and placed pending pods.
func (plan *Plan) printConsequences(page *answer.Page) {
	if len(plan.Empties) > 0 {
		page.Line("\nEmpty after the plan, with the taint %s:NoSchedule: %s", EmptyingTaint,
			answer.List(len(plan.Empties), func(i int) string { return plan.Empties[i] }))
	}
	for _, a := range plan.Arrivals {
		if a.After > 0 {
			page.Line("%s/%s, which is pending, finds a place on %s behind move %d.", a.Namespace, a.Name, a.Node, a.After)
		}
	}
}

// String lists the components of the cost, the most expensive first. The grace period is always at
// the end, so the text is never empty.
func (c *Cost) String() string {
	var words []string
	if c.Sole {
		words = append(words, "only replica")
	}

	if c.Stateful {
		words = append(words, "stateful")
	}
	if c.Budget != "" {
		words = append(words, fmt.Sprintf("budget %s (%d left)", c.Budget, c.Left))
	}

	if c.Volumes > 0 {
		words = append(words, answer.Count(c.Volumes, "volume"))
	}
	if c.Priority != 0 {
		words = append(words, fmt.Sprintf("priority %d", c.Priority))
	}
	return strings.Join(append(words, fmt.Sprintf("grace %ds", c.GraceSeconds)), ", ")
}

// printStays prints the staying pods with the reasons. Without wide, it prints at most answer.Most
// pods.
func (plan *Plan) printStays(page *answer.Page, wide bool) {
	shown := answer.Shown(plan.Stays, wide)
	answer.Section(page, "", []string{"STAYS", "NODE", "CAUSE", "CODE", "WHY"}, shown, func(s Stay) []string {
		name := "(node)"
		if s.Name != "" {
			name = s.Namespace + "/" + s.Name
		}
		return []string{name, s.Node, s.Cause, string(s.Code), s.Message}
	})
	if left := len(plan.Stays) - len(shown); left > 0 {
		page.Line("and %d more (-o wide lists them all)", left)
	}
}
