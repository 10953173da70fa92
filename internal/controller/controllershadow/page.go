// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/engine/decision"
)

// page is the content of a report, in sentences and tables. Markdown and HTML are rendered from the
// same page.
type page struct {
	Title    string
	Lead     []string // sentences before all sections
	Sections []section
}

// section is a heading with sentences and, if there are rows, a table.
type section struct {
	Title string
	Text  []string
	Head  []string   // titles of the table's columns
	Rows  [][]string // each row has as many cells as Head; without rows there is no table
}

//go:embed page.html
var pageHTML string

var asHTML = template.Must(template.New("page").Parse(pageHTML))

// WriteHTML writes a self-contained page.
func (r Reports) WriteHTML(out io.Writer) error { return asHTML.Execute(out, r.buildPage()) }

// WriteMarkdown writes the same page as Markdown.
func (r Reports) WriteMarkdown(out io.Writer) error {
	var text strings.Builder
	p := r.buildPage()
	fmt.Fprintf(&text, "# %s\n", p.Title)
	for _, line := range p.Lead {
		fmt.Fprintf(&text, "\n%s\n", line)
	}

	for _, s := range p.Sections {
		fmt.Fprintf(&text, "\n## %s\n", s.Title)
		for _, line := range s.Text {
			fmt.Fprintf(&text, "\n%s\n", line)
		}
		if len(s.Rows) == 0 {
			continue
		}
		fmt.Fprintf(&text, "\n| %s |\n|%s\n", strings.Join(s.Head, " | "), strings.Repeat(" --- |", len(s.Head)))
		for _, row := range s.Rows {
			// A reason may contain a |, which would end the cell.
			cells := make([]string, len(row))
			for i, cell := range row {
				cells[i] = strings.ReplaceAll(cell, "|", `\|`)
			}
			fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | "))
		}
	}

	_, err := io.WriteString(out, text.String())
	return err
}

// buildPage first describes the extent of the comparison, then summarizes the differences, and then
// adds the figures of each component. It omits components without a report.
func (r Reports) buildPage() page {
	p := page{Title: "Berth in shadow"}
	if c := r.Controller; c != nil {
		p.Lead = append(p.Lead, fmt.Sprintf("Node health and taint eviction were compared %s, on %d nodes with %d "+
			"pods at the end. Berth wrote nothing.",
			betweenText(c.Since, c.Until), c.Nodes, c.Pods))
	}

	if s := r.Scheduler; s != nil {
		p.Lead = append(p.Lead, fmt.Sprintf("Placements were compared %s: %d pods. Berth wrote nothing.",
			betweenText(s.Since, s.Until), s.Pods))
	}

	p.Sections = append(p.Sections, r.savedSection())
	if r.Scheduler != nil {
		p.Sections = append(p.Sections, r.Scheduler.buildSections()...)
	}

	if r.Controller != nil {
		p.Sections = append(p.Sections, r.Controller.buildSections()...)
	}
	return p
}

// betweenText formats a period with its duration.
func betweenText(since, until time.Time) string {
	return fmt.Sprintf("for %s, from %s to %s", formatSpan(until.Sub(since)), since.Format("2006-01-02 15:04 MST"),
		until.Format("2006-01-02 15:04 MST"))
}

// formatSpan formats a duration in the largest unit with a value of at least two.
func formatSpan(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%.1f days", d.Hours()/24)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%.1f hours", d.Hours())
	case d >= 2*time.Minute:
		return fmt.Sprintf("%.0f minutes", d.Minutes())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

// savedSection describes the differences with Berth in charge. It is the first section, because
// readers look for it. Rows with a count of 0 are included, because the absence of late evictions
// is a result as well.
func (r Reports) savedSection() section {
	s := section{Title: "What Berth would have done differently", Head: []string{"", ""}}
	add := func(what string, value string) { s.Rows = append(s.Rows, []string{what, value}) }
	if c := r.Controller; c != nil {
		e, t := c.tallyOf(Eviction), c.tallyOf(Taint)
		add("pods that were evicted without a reason at that moment", fmt.Sprint(e.Outcomes[OnlyOther]))
		add("pods that were due for eviction and still existed a minute later", fmt.Sprint(e.Outcomes[OnlyBerth]))
		add("pods that were evicted late", fmt.Sprintf("%d, %s in all, %s at most", e.Outcomes[Later],
			formatSeconds(e.LateSeconds), formatSeconds(e.MaxLateSeconds)))
		add("pods that were evicted too early", fmt.Sprint(e.Outcomes[Earlier]))
		add("taints for a node's health that came or went late", fmt.Sprintf("%d, %s at most", t.Outcomes[Later], formatSeconds(t.MaxLateSeconds)))
		add("taints that only Berth would have added or removed", fmt.Sprint(t.Outcomes[OnlyBerth]))
		add("taints that only the other controller added or removed", fmt.Sprint(t.Outcomes[OnlyOther]))
	}

	if p := r.Scheduler; p != nil {
		add("pods that were placed on a node that was not the best",
			fmt.Sprintf("%s, %.1f points below it on average, %d at most", formatShare(p.Worse, p.Pods), p.MeanGainWorse, p.MaxGain))
		add("pods that were placed on a node that Berth's filters refuse", formatShare(p.Rejected, p.Pods))
		add("pods whose placement could not be judged: the cluster changed while they were decided", formatShare(p.Unclear, p.Pods))
	}

	if len(s.Rows) == 0 {
		s.Text = []string{"Nothing was compared."}
	}
	return s
}

// tallyOf returns an empty tally for a kind that was not compared.
func (r *Report) tallyOf(kind Kind) *Tally {
	if t := r.Tallies[kind]; t != nil {
		return t
	}
	return &Tally{}
}

// formatSeconds formats a number of seconds like formatSpan.
func formatSeconds(seconds float64) string {
	return formatSpan(time.Duration(seconds * float64(time.Second)))
}

// formatShare formats a part of a whole, with its percentage.
func formatShare(part, whole int) string {
	if whole == 0 {
		return "0"
	}
	return fmt.Sprintf("%d of %d (%.1f %%)", part, whole, 100*float64(part)/float64(whole))
}

// saysOutcome has the names of the outcomes in the report's tables.
var saysOutcome = map[Outcome]string{
	AtOnce: "both, within " + Same.String(), Later: "both, kube-controller-manager later", Earlier: "both, kube-controller-manager earlier",
	OnlyBerth: "only Berth", OnlyOther: "only kube-controller-manager",
}

// buildSections returns the table of outcomes and, if there are any, the differences.
func (r *Report) buildSections() []section {
	sums := section{Title: "Node health and evictions", Head: []string{"decisions", "evictions", "taints"}}
	for _, outcome := range Outcomes {
		sums.Rows = append(sums.Rows, []string{saysOutcome[outcome], fmt.Sprint(r.tallyOf(Eviction).Outcomes[outcome]),
			fmt.Sprint(r.tallyOf(Taint).Outcomes[outcome])})
	}

	sums.Rows = append(sums.Rows, []string{"both, of all",
		fmt.Sprintf("%.2f %%", 100*r.Tallies[Eviction].Agreement()), fmt.Sprintf("%.2f %%", 100*r.Tallies[Taint].Agreement())})
	if len(r.Differences) == 0 {
		return []section{sums}
	}

	list := section{
		Title: "Where they differed", Head: []string{"when", "what", "", "decided by", "kube-controller-manager later by", "why"},
		Text: []string{fmt.Sprintf("The widest %d, those of one side alone first.", len(r.Differences))},
	}

	for _, d := range r.Differences {
		// A one-sided decision has no lag, only the time waited.
		lag := ""
		if d.Outcome == Later || d.Outcome == Earlier {
			lag = fmt.Sprintf("%.1f s", d.LagSeconds)
		}
		list.Rows = append(list.Rows, []string{d.At.Format("01-02 15:04:05"), d.Object, d.What, saysOutcome[d.Outcome], lag, d.Why})
	}
	return []section{sums, list}
}

// buildSections returns the sums, and the pods placed on the worst nodes relative to the best one.
func (p *Placements) buildSections() []section {
	sums := section{Title: "Placements", Head: []string{"", "the other scheduler", "Berth"}, Rows: [][]string{
		{"pods on a node with the highest total", formatShare(p.Best, p.Pods), formatShare(p.Best+p.Worse, p.Pods)},
		{"mean total of the node", fmt.Sprintf("%.1f", p.MeanTotal), fmt.Sprintf("%.1f", p.MeanBestTotal)},
	}}
	list := section{Title: "The widest gaps", Head: []string{"pod", "node", "total", "best node", "total", "why"}}
	for _, all := range [][]decision.Placement{p.Widest, p.Refused} {
		for _, c := range all {
			list.Rows = append(list.Rows, []string{c.Namespace + "/" + c.Name, c.Node, fmt.Sprint(c.Total), c.Best,
				fmt.Sprint(c.BestTotal), c.Why})
		}
	}
	if len(list.Rows) == 0 {
		return []section{sums}
	}
	return []section{sums, list}
}
