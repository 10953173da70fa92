// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package schedulershadow

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
)

// Outcome is the result of comparing the chosen node with the best nodes.
type Outcome string

const (
	Best     Outcome = "Best"     // one of the nodes with the highest total
	Worse    Outcome = "Worse"    // another node had a higher total
	Rejected Outcome = "Rejected" // the pod did not fit on the node
	Unclear  Outcome = "Unclear"  // Worse or Rejected, but possibly decided in an unknown state
)

// Comparison describes one pod bound by the other scheduler.
type Comparison struct {
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	Node      string  `json:"node"`
	Outcome   Outcome `json:"outcome"`
	// Best is a node with the highest total, if the chosen node has a lower one.
	Best string `json:"best,omitempty"`
	// Total and BestTotal are the sums of the plugins' scores times their weights.
	Total     int64 `json:"total"`
	BestTotal int64 `json:"bestTotal"`
	// Feasible is the number of feasible nodes.
	Feasible int `json:"feasible"`
	// Why is the reason why the pod did not fit on the node.
	Why string `json:"why,omitempty"`
}

// Gain returns the points by which the best node exceeds the chosen one.
func (c *Comparison) Gain() int64 {
	if c.Outcome != Worse {
		return 0
	}
	return c.BestTotal - c.Total
}

// Report summarizes all comparisons.
type Report struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until"`
	Pods       int       `json:"pods"`
	Best       int       `json:"best"`
	Worse      int       `json:"worse"`
	Rejected   int       `json:"rejected"`
	// Unclear counts the undecidable pods: while they were decided, the cluster changed in an
	// unknown order, and the node was not the best in any of the states tried.
	Unclear int `json:"unclear"`
	// MeanGain is the mean over all judged pods, including optimally placed ones; MeanGainWorse
	// excludes those.
	MeanGain      float64 `json:"meanGain"`
	MeanGainWorse float64 `json:"meanGainWorse"`
	MaxGain       int64   `json:"maxGain"`
	// MeanTotal is the mean total of the chosen nodes, and MeanBestTotal is the mean total of the
	// best nodes.
	MeanTotal     float64 `json:"meanTotal"`
	MeanBestTotal float64 `json:"meanBestTotal"`
	// Widest holds the comparisons with the largest gains. Refused holds the first comparisons with
	// an infeasible node.
	Widest  []Comparison `json:"widest,omitempty"`
	Refused []Comparison `json:"refused,omitempty"`
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
func list(out *answer.Page, title string, all []Comparison) {
	if len(all) == 0 {
		return
	}
	out.Line("\n%s", title)
	rows := [][]string{{"POD", "NODE", "TOTAL", "BEST NODE", "TOTAL", "FEASIBLE", "WHY"}}
	for i := range all {
		c := &all[i]
		rows = append(rows, []string{
			c.Namespace + "/" + c.Name, c.Node, fmt.Sprint(c.Total), orDash(c.Best), fmt.Sprint(c.BestTotal), fmt.Sprint(c.Feasible), c.Why,
		})
	}
	out.Table("  ", rows)
}

// orDash returns the text, or a dash if it is empty.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// widest keeps the comparisons with the largest gains. Of equal gains, the earlier comparison is
// first. The list is sorted, and has at most answer.Most entries.
func widest(list []Comparison, c Comparison) []Comparison {
	if c.Gain() == 0 {
		return list
	}
	at, _ := slices.BinarySearchFunc(list, c, func(a, b Comparison) int {
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
