package shadow

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
)

// Outcome is how a choice compares with the best.
type Outcome string

const (
	Best     Outcome = "Best"     // one of the nodes with the highest total
	Worse    Outcome = "Worse"    // another node had a higher one
	Rejected Outcome = "Rejected" // the node could not take the pod
	Unclear  Outcome = "Unclear"  // one of the last two, or it was decided by a state that is not known
)

// Comparison is one pod that the other scheduler bound.
type Comparison struct {
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	Node      string  `json:"node"`
	Outcome   Outcome `json:"outcome"`
	// Best is a node with the highest total, where the chosen one has a lower one.
	Best string `json:"best,omitempty"`
	// Total and BestTotal are the sums of the plugins' scores times their weights.
	Total     int64 `json:"total"`
	BestTotal int64 `json:"bestTotal"`
	// Feasible is how many nodes could take the pod.
	Feasible int `json:"feasible"`
	// Why is the reason why the node could not take it.
	Why string `json:"why,omitempty"`
}

// Gain is how many more points the best node has.
func (c *Comparison) Gain() int64 {
	if c.Outcome != Worse {
		return 0
	}
	return c.BestTotal - c.Total
}

// Report sums up all comparisons.
type Report struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until"`
	Pods       int       `json:"pods"`
	Best       int       `json:"best"`
	Worse      int       `json:"worse"`
	Rejected   int       `json:"rejected"`
	// Unclear counts the pods that could not be judged: while they were decided, the cluster
	// changed in an order that is not known, and the node was not the best in any state that was
	// tried.
	Unclear int `json:"unclear"`
	// MeanGain is the mean over the pods that were judged, also those that were placed best;
	// MeanGainWorse over the others alone.
	MeanGain      float64 `json:"meanGain"`
	MeanGainWorse float64 `json:"meanGainWorse"`
	MaxGain       int64   `json:"maxGain"`
	// MeanTotal is of the nodes chosen, MeanBestTotal of the best ones.
	MeanTotal     float64 `json:"meanTotal"`
	MeanBestTotal float64 `json:"meanBestTotal"`
	// Widest are the comparisons with the largest gains, Refused the first with a node that could
	// not take the pod.
	Widest  []Comparison `json:"widest,omitempty"`
	Refused []Comparison `json:"refused,omitempty"`
}

// Line is the report in one line.
func (r *Report) Line() string {
	return fmt.Sprintf("%d pods bound by others: %d on a best node, %d not (%.1f points below the best on average, at "+
		"most %d), %d on a node that could not take them, %d could not be judged",
		r.Pods, r.Best, r.Worse, r.MeanGainWorse, r.MaxGain, r.Rejected, r.Unclear)
}

// Write writes the report in one of answer.Formats; any other is for people.
func (r *Report) Write(out io.Writer, format string) error {
	return answer.Write(out, format, r, r.text)
}

// text writes the report for people.
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

// share tells a part of a whole, with its percentage.
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

// orDash is the text, or a dash for none.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// widest keeps the comparisons with the largest gains, the first of equal ones before later ones.
// The list is sorted, and has answer.Most entries at most.
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

// reasons joins a rejection's reasons.
func reasons(list []string) string { return strings.Join(list, ", ") }
