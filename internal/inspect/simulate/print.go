// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

// Output for people: one line per decision or event; a reason shared by several lines is written
// once. For programs, package answer writes the struct as JSON or YAML.

// Names lists the decided pods, in the order of the first decision about each.
func (s *Simulation) Names() (names []string) {
	listed := map[Name]bool{}
	for i := range s.Pods {
		if p := (Name{s.Pods[i].Namespace, s.Pods[i].Name}); !listed[p] {
			listed[p] = true
			names = append(names, "pod/"+p.Name)
		}
	}
	return names
}

// Write writes the result in one of answer.Formats, as names, or as a drawing ("svg"). For any
// other format, including "wide" and "", it writes a table for people.
func (s *Simulation) Write(out io.Writer, format string) error {
	if format == "svg" {
		return s.SVG(out, time.Duration(s.For))
	}
	return answer.Write(out, format, s, func(page *answer.Page) { s.writeTable(page, format == "wide") })
}

// writeTable writes one line per decision, the evictions, and the sums. With wide, every line has
// its full reason. For a scenario, it writes the timeline, which includes all of that.
func (s *Simulation) writeTable(out *answer.Page, wide bool) {
	if s.Timeline != nil {
		s.writeEvents(out)
		return
	}
	timed := slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.After != 0 })
	// Explained pods are blocks instead of rows: each has a separate table of nodes.
	if slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.Nodes != nil }) {
		first := map[string]string{} // first pod with each explanation, keyed by the explanation
		for i, lines := 0, s.groupLines(); i < len(s.Pods); i++ {
			if at := lines[i]; at >= 0 && (i == 0 || lines[i-1] != at) {
				out.Line("%s/podgroup/%s: <none>: %s", s.Groups[at].Namespace, s.Groups[at].Name, s.Groups[at].why())
			}
			s.Pods[i].writeExplained(out, timed, first)
		}
	} else if len(s.Pods) > 0 {
		s.writeDecisions(out, timed, wide)
	}
	// The column is named after its content: without pressure, all causes are taints.
	cause := "TAINT"
	if slices.ContainsFunc(s.Evictions, func(e Eviction) bool { return e.Message != "" }) {
		cause = "CAUSE"
	}
	answer.Section(out, "", []string{"EVICTED AFTER", "NAMESPACE", "NAME", "NODE", cause}, s.Evictions, func(e Eviction) []string {
		return []string{answer.Duration(e.After.Duration()), e.Namespace, e.Name, e.Node, cmp.Or(e.Taint, e.Message)}
	})
	if len(s.Pods)+len(s.Evictions) > 0 {
		out.Line("")
	}
	if len(s.Pods) == 0 {
		out.Line("nothing to place: %s", s.nothingToPlace())
	}
	s.writeSums(out)
}

// asAbove replaces a text equal to the text of the line above.
const asAbove = "as above"

// longText is the length in bytes above which a text is not repeated in consecutive lines of a
// timeline.
const longText = 60

// writeDecisions writes one line per decision. A reason shared by several pods is written with the
// first of them; of many such pods, only the first answer.Most are listed. For example, with three
// replicas that fit nowhere:
//
//	default   web-1   <none>   0/5 nodes are available: 5 Insufficient cpu.
//	default   web-2   <none>   as above
//	default   db-0    node-3
//	default   web-3   <none>   as default/web-1
func (s *Simulation) writeDecisions(out *answer.Page, timed, wide bool) {
	rows := [][]string{{"NAMESPACE", "NAME", "NODE", "WHY"}}
	if timed {
		rows[0] = slices.Insert(rows[0], 0, "AFTER")
	}

	first, count := map[string]string{}, map[string]int{}
	hidden, above, lines := 0, "", s.groupLines()
	for i := range s.Pods {
		p := &s.Pods[i]
		why := p.why()
		name := []string{p.Namespace, p.Name}
		// Pending members of a group share the group's line.
		if lines[i] >= 0 {
			if i > 0 && lines[i-1] == lines[i] {
				continue
			}
			g := &s.Groups[lines[i]]
			why, name[1] = g.why(), "podgroup/"+g.Name
		}
		whole := why
		if why != "" && p.Node == "" && !wide {
			count[why]++
			switch like := first[why]; {
			case like == "":
				first[why] = name[0] + "/" + name[1]
			case count[why] > answer.Most:
				hidden++
				continue
			case why == above:
				why = asAbove
			default:
				why = "as " + like
			}
		}
		if why != asAbove {
			above = whole
		}
		row := append(name, cmp.Or(p.Node, "<none>"), why)
		if timed {
			row = slices.Insert(row, 0, answer.Duration(p.After.Duration()))
		}
		rows = append(rows, row)
	}

	out.Table("", rows)
	if hidden > 0 {
		out.Line("and %d more pending for the same reasons (-o wide lists them all)", hidden)
	}
}

// nothingToPlace explains why no pods need placing.
func (s *Simulation) nothingToPlace() string {
	switch {
	case s.Bound == 1:
		return "the one pod has a node"
	case s.Bound > 1:
		return fmt.Sprintf("all %d pods have nodes", s.Bound)
	}
	return "there is no pod"
}

// writeSums writes the last line: the number of pods per outcome. Drains appear only if there were
// any.
func (s *Simulation) writeSums(out *answer.Page) {
	t := s.Totals()
	sums := fmt.Sprintf("%d placed, %d pending, %d preempted", t.Placed, t.Pending, t.Victims)
	if t.Victims > 0 && t.Placed > 0 {
		sums += fmt.Sprintf(" (%.2f per placed pod)", float64(t.Victims)/float64(t.Placed))
	}
	sums += fmt.Sprintf(", %d evicted", t.Evicted)
	if t.Drained > 0 {
		sums += fmt.Sprintf(", %d drained", t.Drained)
	}
	out.Line("%s", sums)
}

// writeEvents writes the timeline: one line per event. Of many events of one kind at one time, it
// lists only the first few, because hundreds of pods of a failed zone may be evicted in the same
// second.
func (s *Simulation) writeEvents(out *answer.Page) {
	const most = 5
	rows := [][]string{{"AFTER", "EVENT", "WHERE", ""}}
	for i := 0; i < len(s.Timeline); {
		next := i
		for next < len(s.Timeline) && s.Timeline[next].After == s.Timeline[i].After {
			next++
		}
		for _, group := range answer.Grouped(s.Timeline[i:next], func(e Event) string { return e.Kind }) {
			shown := len(group)
			if shown > most+1 { // a line "and 1 more" would take as much room as the event
				shown = most
			}
			above := ""
			for _, e := range group[:shown] {
				text := e.Message
				if e.Name != "" && e.Node != "" {
					text = strings.TrimSuffix(e.Node+": "+text, ": ")
				}
				if len(text) > longText && text == above {
					text = asAbove
				} else {
					above = text
				}
				rows = append(rows, []string{answer.Duration(e.After.Duration()), e.Kind, e.Where(), text})
			}
			if shown < len(group) {
				rows = append(rows, []string{answer.Duration(group[0].After.Duration()), group[0].Kind,
					fmt.Sprintf("and %d more", len(group)-shown), ""})
			}
		}
		i = next
	}

	out.Table("", rows)
	out.Line("")
	s.writeSums(out)
	for _, note := range s.Notes {
		out.Warning("note: %s", note)
	}
}

// why returns a one-line summary of the details without a column of their own.
func (p *Pod) why() string {
	if len(p.Victims) == 0 {
		return p.Message
	}
	return fmt.Sprintf("preempts on %s: %s", p.NominatedNode, joinNames(p.Victims))
}

// joinNames lists pods as namespace/name. Of many pods, it names only some, followed by the number
// of the rest.
func joinNames(pods []Name) string {
	return answer.List(len(pods), func(i int) string { return pods[i].Namespace + "/" + pods[i].Name })
}

// writeExplained writes a pod with the verdicts on every node. Pending pods with identical verdicts
// refer to the first such pod; first maps the verdicts' text to that pod and is updated. timed adds
// the time.
func (p *Pod) writeExplained(out *answer.Page, timed bool, first map[string]string) {
	name := p.Namespace + "/" + p.Name
	title := name
	if timed {
		title += " after " + answer.Duration(p.After.Duration())
	}

	rows := p.verdictRows()
	if p.Node != "" {
		out.Line("%s: %s", title, p.Node)
	} else {
		text := fmt.Sprint(p.why(), rows)
		if like := first[text]; like != "" {
			out.Line("%s: <none>: as %s", title, like)
			return
		}
		first[text] = name
		out.Line("%s: <none>: %s", title, p.why())
	}

	out.Rows("  ", rows)
}

// verdictRows returns one row per node, with its scores or the rejection.
func (p *Pod) verdictRows() (rows [][]string) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if !n.Feasible {
			rejection := strings.Join(n.Reasons, "; ")
			if n.Plugin != "" { // not excluded by PreFilter
				rejection = n.Plugin + ": " + rejection
			}
			rows = append(rows, []string{n.Name, "no", rejection})
			continue
		}
		var scores []string
		for name, score := range n.Scores {
			scores = append(scores, fmt.Sprintf("%s=%d", name, score))
		}
		slices.Sort(scores)
		rows = append(rows, []string{n.Name, strconv.FormatInt(*n.Total, 10), strings.Join(scores, " ")})
	}
	return rows
}

// explainPod runs every plugin on every node if an explanation is wanted, and returns nil
// otherwise. Visiting every node for every pod costs far more than the decision.
func (s *scheduler) explainPod(schedulerName string, p *cluster.Pod) []Node {
	if !s.explains {
		return nil
	}
	return Verdicts(s.core.Decider(schedulerName).Plain().Evaluate(p))
}

// Verdicts returns an evaluation's verdicts on the nodes, sorted by name. Total is set, possibly to
// 0, only for feasible nodes.
func Verdicts(e *decide.Evaluation) []Node {
	nodes := make([]Node, 0, len(e.Nodes))
	for i := range e.Nodes {
		v := &e.Nodes[i]
		n := Node{Name: v.Node.Name, Feasible: v.Rejection == nil}
		if r := v.Rejection; r != nil {
			n.Plugin, n.Code, n.Reasons = v.Plugin, r.Code, r.Reasons
		} else {
			n.Total = new(v.Total)
		}
		for _, score := range v.Scores {
			if n.Scores == nil {
				n.Scores = make(map[string]int64, len(v.Scores))
			}
			n.Scores[score.Plugin] = score.Score
		}
		nodes = append(nodes, n)
	}

	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}
