// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Write writes the pending workloads as a table, in one of answer.Formats, or as names. Format wide
// adds the pods and the scheduler's message.
func (p *Pending) Write(out io.Writer, format string) error {
	return answer.Write(out, format, p, func(page *answer.Page) { p.writeForPeople(page, format == "wide") })
}

// Names returns the pending pods.
func (p *Pending) Names() (names []string) {
	for i := range p.Workloads {
		for _, name := range p.Workloads[i].Pods {
			names = append(names, "pod/"+name)
		}
	}
	return names
}

// scopeText describes the scope of an empty result, as a hint that -A, or omitting -l, would
// include more pods. It returns "" if the scope was all pods.
func (s Scope) scopeText() (words string) {
	if s.Namespace != "" {
		words = " in namespace " + s.Namespace
	}
	if s.Selector != nil && !s.Selector.Empty() {
		words += " with the labels " + s.Selector.String()
	}
	return words
}

// writeForPeople writes a line for each workload and reason, then the helpful changes, and finally
// the totals.
func (p *Pending) writeForPeople(page *answer.Page, wide bool) {
	if len(p.Workloads) == 0 {
		page.Line("No pod is pending%s.", p.scope.scopeText())
		page.Line("\n%s.", p.Source)
		return
	}
	rows := [][]string{{"NAMESPACE", "WORKLOAD", "PENDING", "SINCE", "WHY"}}
	for i := range p.Workloads {
		w := &p.Workloads[i]
		// Nonexistent pods lack names and are listed in separate entries.
		count := fmt.Sprint(len(w.Pods))
		if w.Missing > 0 {
			count = fmt.Sprintf("%d missing", w.Missing)
		}
		rows = append(rows, []string{w.Namespace, w.Name, count, answer.Duration(w.For.Duration()), w.why()})
	}
	page.Table("", rows)
	p.printHelps(page)
	if wide {
		for i := range p.Workloads {
			w := &p.Workloads[i]
			if len(w.Pods) == 0 {
				continue
			}
			page.Line("\n%s %s: %s", w.Namespace, w.Name, strings.Join(w.Pods, ", "))
			if w.Message != "" {
				page.Line("  %s", w.Message)
			}
		}
	}
	for _, note := range p.Notes {
		page.Line("\n%s", note)
	}
	// A workload has several lines if its pods are pending for several reasons.
	workloads := answer.Grouped(p.Workloads, func(w Workload) [2]string { return [2]string{w.Namespace, w.Name} })
	missing := ""
	if p.Missing > 0 {
		missing = fmt.Sprintf(" and %d missing", p.Missing)
	}
	page.Line("\n%s pending%s, of %s. %s.", answer.Count(p.Pods, "pod"), missing, answer.Count(len(workloads), "workload"), p.Source)
}

// printHelps prints the helpful changes, each once for all workloads. They follow the order of the
// workloads, so a change that helps the most pods tends to be first.
func (p *Pending) printHelps(page *answer.Page) {
	helped := slices.DeleteFunc(slices.Clone(p.Workloads), func(w Workload) bool { return w.Help == "" })
	if len(helped) == 0 {
		return
	}
	page.Line("")
	page.Heading("What would help, the smallest change that lets one pod run:")

	// The same change often helps several workloads, such as a node selector's missing label.
	for _, same := range answer.Grouped(helped, func(w Workload) [2]string { return [2]string{w.Help, w.Command} }) {
		names := answer.List(len(same), func(i int) string { return same[i].Namespace + "/" + same[i].Name })
		page.Line("  %s: %s", names, same[0].Help)
		if same[0].Command != "" {
			page.Command("    ", same[0].Command)
		}
	}
}

// why returns the printed reason. If a plugin rejects nodes, it includes the number of nodes.
func (w *Workload) why() string {
	text := w.Reason
	if w.Detail != "" {
		text += " (" + w.Detail + ")"
	}
	if w.Nodes > 0 {
		return fmt.Sprintf("%d of %s: %s", w.Nodes, answer.Count(w.Of, "node"), text)
	}
	return text
}

// Write writes the pods due for eviction as a table, in one of answer.Formats, or as names.
func (e *Evictions) Write(out io.Writer, format string) error {
	return answer.Write(out, format, e, func(page *answer.Page) { e.writeForPeople(page, format == "wide") })
}

// Names returns the pods due for eviction.
func (e *Evictions) Names() []string {
	return answer.Mapped(e.Evictions, func(v Eviction) string { return "pod/" + v.Name })
}

// writeForPeople writes the pods in order of time. Without wide, it writes only the first ones.
func (e *Evictions) writeForPeople(page *answer.Page, wide bool) {
	if len(e.Evictions) == 0 {
		page.Line("No pod has to leave its node%s.", e.scope.scopeText())
		page.Line("\n%s.", e.Source)
		return
	}
	rows := [][]string{{"IN", "AT", "NAMESPACE", "POD", "NODE", "WORKLOAD", "CAUSE"}}
	for _, v := range answer.Shown(e.Evictions, wide) {
		in := answer.Duration(v.After.Duration())
		if v.After == 0 {
			in = "now"
		}
		workload := v.Workload
		if v.Lost {
			workload = "none: lost"
		}
		at := "-" // manifests have no time
		if !v.Due.IsZero() {
			at = v.Due.UTC().Format("2006-01-02 15:04:05Z")
		}
		cause := v.Taint
		if v.Held != nil {
			cause = "held since " + v.Held.Since.UTC().Format("15:04:05Z") + ": " + cmp.Or(v.Held.Status, "waiting for the guard")
		}
		rows = append(rows, []string{in, at, v.Namespace, v.Name, v.Node, workload, cause})
	}
	page.Table("", rows)
	// Print the number of pods at the end in any case.
	if more := len(e.Evictions) - answer.Most; more > 0 && !wide {
		page.Line("and %d more (-o wide lists them all)", more)
	}
	page.Line("\n%s to leave. %s.", answer.Count(len(e.Evictions), "pod"), e.Source)
}

// Write writes the capacity as a table, in one of answer.Formats, or as names.
func (c *Capacity) Write(out io.Writer, format string) error {
	return answer.Write(out, format, c, func(page *answer.Page) { c.writeForPeople(page, format == "wide") })
}

// Names returns the nodes, zones or shapes.
func (c *Capacity) Names() []string {
	return answer.Mapped(c.Groups, func(g Group) string { return c.By + "/" + g.Name })
}

// mostGroups limits the groups listed without -o wide. Twenty rows fit on a screen with the header
// and the lines below.
const mostGroups = 20

// writeForPeople writes a row for each group, and a total if there are several.
func (c *Capacity) writeForPeople(page *answer.Page, wide bool) {
	if len(c.Groups) == 0 {
		page.Line("There is no node.")
		page.Line("\n%s.", c.Source)
		return
	}
	// A single node is open or closed; for several nodes, print the number of closed ones.
	single := c.By == Ways[0]
	rows := [][]string{{strings.ToUpper(c.By), "NODES", "CPU", "MEMORY", "PODS", "LARGEST POD", "STRANDED"}}
	if single {
		rows[0][1] = "TAKES PODS"
	}
	list := c.Groups
	if !wide && len(list) > mostGroups { // list only the roomiest groups
		list = slices.Clone(list)
		slices.SortStableFunc(list, func(a, b Group) int { return cmp.Compare(b.Largest.CPU, a.Largest.CPU) })
		list = list[:mostGroups]
	}
	for i := range list {
		row := list[i].tableRow()
		if single {
			row[1] = "open"
			if list[i].Closed > 0 {
				row[1] = "closed"
			}
		}
		rows = append(rows, row)
	}
	if len(c.Groups) > 1 {
		rows = append(rows, c.Total.tableRow())
	}
	page.Table("", rows)
	if more := len(c.Groups) - len(list); more > 0 {
		page.Line("and %d more with less room (-o wide lists them all)", more)
	}
	page.Line("\nCPU, memory and pods are requested of allocatable. Stranded is room that the median pod (%s CPU, %s) "+
		"cannot use.", showCPU(c.Typical.CPU), showMemory(c.Typical.Memory))
	if f := c.Fill; f != nil {
		page.Heading("%s.", fitsText(f))
		if f.Stops != "" {
			page.Line("The next one does not fit: %s", f.Stops)
		}
		if f.Ahead > 0 {
			page.Line("Pending pods go first; placed before: %d.", f.Ahead)
		}
	}
	page.Line("%s.", c.Source)
}

// fitsText describes how many more pods fit.
func fitsText(f *simulate.Fill) string {
	switch f.Placed {
	case 0:
		return "No more pods like " + f.Like + " fit"
	case 1:
		return "1 more pod like " + f.Like + " fits"
	}
	return fmt.Sprintf("%d more pods like %s fit, on %s", f.Placed, f.Like, answer.Count(len(f.Nodes), "node"))
}

// tableRow returns a group's row. LARGEST POD is "none" if all of its nodes are closed or full.
func (g *Group) tableRow() []string {
	nodes := fmt.Sprint(g.Nodes)
	if g.Closed > 0 {
		nodes += fmt.Sprintf(" (%d closed)", g.Closed)
	}
	largest := "none"
	if g.LargestNode != "" {
		largest = showCPU(g.Largest.CPU) + ", " + showMemory(g.Largest.Memory)
	}
	return []string{
		g.Name, nodes, showCPU(g.Requested.CPU) + " of " + showCPU(g.Allocatable.CPU), showMemory(g.Requested.Memory) + " of " +
			showMemory(g.Allocatable.Memory),
		fmt.Sprintf("%d of %d", g.Requested.Pods, g.Allocatable.Pods), largest, showCPU(g.Stranded.CPU) + ", " +
			showMemory(g.Stranded.Memory),
	}
}

// showCPU formats millicores as a quantity, such as 1500m or 2.
func showCPU(milli int64) string {
	return resource.NewMilliQuantity(milli, resource.DecimalSI).String()
}

// showMemory formats bytes in whole mebibytes, or larger units. It truncates fractions of a
// mebibyte to avoid long numbers in a column.
func showMemory(bytes int64) string { return plugins.Amount(v1.ResourceMemory, bytes&^(1<<20-1)) }

// Fingerprint is the report without the time of the request and the age of pending pods. Reports
// with the same fingerprint have the same content for a reader. It is for callers that poll and
// print only changes, such as commands with --watch.
func (p *Pending) Fingerprint() string {
	var gist strings.Builder
	for i := range p.Workloads {
		w := &p.Workloads[i]
		fmt.Fprintln(&gist, w.Namespace, w.Name, w.Pods, w.Missing, w.State, w.why(), w.Help)
	}
	return gist.String()
}

// Fingerprint is the report without the time of the request and the remaining time. It includes the
// due time of a pod, because a changed due time must be reported.
func (e *Evictions) Fingerprint() string {
	var gist strings.Builder
	for i := range e.Evictions {
		v := &e.Evictions[i]
		fmt.Fprintln(&gist, v.Namespace, v.Name, v.Node, v.Due.Unix(), v.Taint)
	}
	return gist.String()
}

// Fingerprint is the report without the time of the request.
func (c *Capacity) Fingerprint() string {
	gist := fmt.Sprint(c.Groups)
	if c.Fill != nil {
		gist += fmt.Sprint(c.Fill.Placed, c.Fill.Nodes, c.Fill.Stops)
	}
	return gist
}
