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
)

// Write writes the answer in one of answer.Formats, or drawn as svg; any other format is for
// people.
func (s *Simulation) Write(out io.Writer, format string) error {
	if format == "svg" {
		return s.SVG(out, time.Duration(s.For))
	}
	return answer.Write(out, format, s, s.table)
}

// table writes what people want to know: a line a decision, the evictions, and the sums.
func (s *Simulation) table(out *answer.Page) {
	if s.Timeline != nil {
		s.events(out)
		return
	}
	timed := slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.After != 0 })
	if slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.Nodes != nil }) {
		for i := range s.Pods {
			s.Pods[i].explained(out, timed)
		}
	} else if len(s.Pods) > 0 {
		rows := [][]string{{"NAMESPACE", "NAME", "NODE", "WHY"}}
		for i := range s.Pods {
			p := &s.Pods[i]
			rows = append(rows, []string{p.Namespace, p.Name, cmp.Or(p.Node, "<none>"), p.why()})
		}
		for i := range rows {
			switch {
			case !timed:
			case i == 0:
				rows[i] = slices.Insert(rows[i], 0, "AFTER")
			default:
				rows[i] = slices.Insert(rows[i], 0, answer.Duration(s.Pods[i-1].After.Duration()))
			}
		}
		out.Table("", rows)
	}
	if len(s.Evictions) > 0 {
		rows := [][]string{{"EVICTED AFTER", "NAMESPACE", "NAME", "NODE", "TAINT"}}
		for _, e := range s.Evictions {
			rows = append(rows, []string{answer.Duration(e.After.Duration()), e.Namespace, e.Name, e.Node, e.Taint})
		}
		io.WriteString(out, "\n")
		out.Table("", rows)
	}
	if len(s.Pods)+len(s.Evictions) > 0 {
		io.WriteString(out, "\n")
	}
	if len(s.Pods) == 0 {
		fmt.Fprintf(out, "nothing to place: %s\n", s.bound())
	}
	s.sums(out)
}

// bound says why there is nothing to place.
func (s *Simulation) bound() string {
	switch {
	case s.Bound == 1:
		return "the one pod has a node"
	case s.Bound > 1:
		return fmt.Sprintf("all %d pods have nodes", s.Bound)
	}
	return "there is no pod"
}

func (s *Simulation) sums(out io.Writer) {
	t := s.Totals()
	fmt.Fprintf(out, "%d placed, %d pending, %d preempted, %d evicted", t.Placed, t.Pending, t.Victims, t.Evicted)
	if t.Drained > 0 {
		fmt.Fprintf(out, ", %d drained", t.Drained)
	}
	io.WriteString(out, "\n")
}

// events writes the timeline: a line an event, where many of a kind do not happen at once.
func (s *Simulation) events(out *answer.Page) {
	const most = 5
	rows := [][]string{{"AFTER", "EVENT", "WHERE", ""}}
	for i := 0; i < len(s.Timeline); {
		next := i
		for next < len(s.Timeline) && s.Timeline[next].After == s.Timeline[i].After {
			next++
		}
		for _, group := range byKind(s.Timeline[i:next]) {
			shown := len(group)
			if shown > most+1 {
				shown = most
			}
			for _, e := range group[:shown] {
				text := e.Message
				if e.Name != "" && e.Node != "" {
					text = strings.TrimSuffix(e.Node+": "+text, ": ")
				}
				rows = append(rows, []string{answer.Duration(e.After.Duration()), e.Kind, e.Where(), text})
			}
			if shown < len(group) {
				rows = append(rows, []string{answer.Duration(group[0].After.Duration()), group[0].Kind, fmt.Sprintf("and %d more", len(group)-shown), ""})
			}
		}
		i = next
	}
	out.Table("", rows)
	io.WriteString(out, "\n")
	s.sums(out)
	for _, note := range s.Notes {
		out.Warning("note: %s", note)
	}
}

// byKind brings the events of one time together by kind, in the order in which the kinds came up.
func byKind(events []Event) (groups [][]*Event) {
	at := map[string]int{}
	for i := range events {
		e := &events[i]
		if _, known := at[e.Kind]; !known {
			at[e.Kind] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[e.Kind]] = append(groups[at[e.Kind]], e)
	}
	return groups
}

// why puts what is not in the columns into one line.
func (p *Pod) why() string {
	if len(p.Victims) == 0 {
		return p.Message
	}
	victims := answer.List(len(p.Victims), func(i int) string { return p.Victims[i].Namespace + "/" + p.Victims[i].Name })
	return fmt.Sprintf("preempts on %s: %s", p.NominatedNode, victims)
}

// explained writes a pod with what is said of every node.
func (p *Pod) explained(out *answer.Page, timed bool) {
	fmt.Fprintf(out, "%s/%s", p.Namespace, p.Name)
	if timed {
		fmt.Fprintf(out, " after %s", answer.Duration(p.After.Duration()))
	}
	switch {
	case p.Node != "":
		fmt.Fprintf(out, ": %s\n", p.Node)
	default:
		fmt.Fprintf(out, ": <none>: %s\n", p.why())
	}
	var rows [][]string
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if !n.Feasible {
			rows = append(rows, []string{n.Name, "no", cmp.Or(n.Plugin, "-") + ": " + strings.Join(n.Reasons, "; ")})
			continue
		}
		var scores []string
		for name, score := range n.Scores {
			scores = append(scores, fmt.Sprintf("%s=%d", name, score))
		}
		slices.Sort(scores)
		rows = append(rows, []string{n.Name, strconv.FormatInt(*n.Total, 10), strings.Join(scores, " ")})
	}
	out.Table("  ", rows)
}
