// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package schedulershadow

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/decision"
)

// Report is the shadow's report.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	decision.Placements
}

// Line returns the report in one line.
func (r *Report) Line() string {
	return fmt.Sprintf("%d pods bound by others: %d on a best node, %d not (%.1f points below the best on average, at "+
		"most %d), %d on a node that could not take them, %d could not be judged",
		r.Pods, r.Best, r.Worse, r.MeanGainWorse, r.MaxGain, r.Rejected, r.Unclear)
}

// Write writes the report in one of answer.Formats; any other means the text form.
func (r *Report) Write(out io.Writer, format string) error {
	return answer.Write(out, format, r, r.text)
}

// text writes the report in the text form.
func (r *Report) text(out *answer.Page) {
	out.Line("%s.", r.Line())
	if r.Pods == 0 {
		return
	}
	judged := r.Pods - r.Unclear
	out.Table("  ", [][]string{
		{"", "THE OTHER SCHEDULER", "BERTH"},
		{"on a best node, of those judged", share(r.Best, judged), share(r.Best+r.Worse, judged)},
		{"could not be judged", share(r.Unclear, r.Pods), "-"},
		{"mean total of the node", fmt.Sprintf("%.1f", r.MeanTotal), fmt.Sprintf("%.1f", r.MeanBestTotal)},
	})
	list(out, "The widest gaps:", r.Widest)
	list(out, "Nodes that could not take their pod:", r.Refused)
}

// share formats a part of a whole, with its percentage.
func share(part, whole int) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d (%.1f%%)", part, whole, 100*float64(part)/float64(whole))
}

// list writes comparisons as a table, if there are any.
func list(out *answer.Page, title string, all []decision.Placement) {
	if len(all) == 0 {
		return
	}
	out.Line("\n%s", title)
	rows := answer.Mapped(all, func(c decision.Placement) []string {
		return []string{c.Namespace + "/" + c.Name, c.Node, fmt.Sprint(c.Total), cmp.Or(c.Best, "-"), fmt.Sprint(c.BestTotal), fmt.Sprint(c.Feasible), c.Why}
	})
	out.Table("  ", slices.Insert(rows, 0, []string{"POD", "NODE", "TOTAL", "BEST NODE", "TOTAL", "FEASIBLE", "WHY"}))
}

// widest keeps the comparisons with the largest gains. Of equal gains, the earlier comparison is
// first. The list is sorted, and has at most answer.Most entries.
func widest(list []decision.Placement, c decision.Placement) []decision.Placement {
	if c.Gain() == 0 {
		return list
	}
	at, _ := slices.BinarySearchFunc(list, c, func(a, b decision.Placement) int {
		if a.Gain() >= b.Gain() {
			return -1
		}
		return 1
	})
	if at >= answer.Most {
		return list
	}
	list = slices.Insert(list, at, c)
	return list[:min(len(list), answer.Most)]
}
