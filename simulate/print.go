package simulate

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// Formats are those that Write knows; the empty one is for people.
var Formats = []string{"json", "yaml"}

// Write writes the answer in a format.
func (s *Simulation) Write(out io.Writer, format string) error {
	switch format {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(s)
	case "yaml":
		text, err := yaml.Marshal(s)
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	}
	buffered := bufio.NewWriter(out)
	s.table(buffered)
	return buffered.Flush()
}

// table writes what people want to know: a line a decision, the evictions, and the sums.
func (s *Simulation) table(out *bufio.Writer) {
	timed := slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.After != 0 })
	explained := slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.Nodes != nil })
	columns := tabwriter.NewWriter(out, 0, 8, 3, ' ', tabwriter.StripEscape)
	header := "NAMESPACE\tNAME\tNODE\tWHY\n"
	if timed {
		header = "AFTER\t" + header
	}
	if len(s.Pods) > 0 && !explained {
		io.WriteString(columns, header)
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if explained {
			p.explained(out, timed)
			continue
		}
		if timed {
			fmt.Fprintf(columns, "%s\t", p.After)
		}
		fmt.Fprintf(columns, "%s\t%s\t%s\t%s\n", p.Namespace, p.Name, cmp.Or(p.Node, "<none>"), p.why())
	}
	columns.Flush()
	if len(s.Evictions) > 0 {
		io.WriteString(out, "\n")
		io.WriteString(columns, "EVICTED AFTER\tNAMESPACE\tNAME\tNODE\tTAINT\n")
		for _, e := range s.Evictions {
			fmt.Fprintf(columns, "%s\t%s\t%s\t%s\t%s\n", e.After, e.Namespace, e.Name, e.Node, e.Taint)
		}
		columns.Flush()
	}
	if len(s.Pods)+len(s.Evictions) > 0 {
		io.WriteString(out, "\n")
	}
	t := s.Totals()
	fmt.Fprintf(out, "%d placed, %d pending, %d preempted, %d evicted\n", t.Placed, t.Pending, t.Victims, t.Evicted)
}

// why puts what is not in the columns into one line.
func (p *Pod) why() string {
	if len(p.Victims) == 0 {
		return p.Message
	}
	const most = 10
	var list []string
	for i, v := range p.Victims {
		if i == most {
			list = append(list, fmt.Sprintf("and %d more", len(p.Victims)-most))
			break
		}
		list = append(list, v.Namespace+"/"+v.Name)
	}
	return fmt.Sprintf("preempts on %s: %s", p.NominatedNode, strings.Join(list, ", "))
}

// explained writes a pod with what is said of every node.
func (p *Pod) explained(out *bufio.Writer, timed bool) {
	fmt.Fprintf(out, "%s/%s", p.Namespace, p.Name)
	if timed {
		fmt.Fprintf(out, " after %s", p.After)
	}
	switch {
	case p.Node != "":
		fmt.Fprintf(out, ": %s\n", p.Node)
	default:
		fmt.Fprintf(out, ": <none>: %s\n", p.why())
	}
	columns := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if !n.Feasible {
			fmt.Fprintf(columns, "  %s\tno\t%s\t%s\n", n.Name, cmp.Or(n.Plugin, "-"), strings.Join(n.Reasons, "; "))
			continue
		}
		var scores []string
		for name, score := range n.Scores {
			scores = append(scores, fmt.Sprintf("%s=%d", name, score))
		}
		slices.Sort(scores)
		fmt.Fprintf(columns, "  %s\t%d\t%s\n", n.Name, *n.Total, strings.Join(scores, " "))
	}
	columns.Flush()
}
