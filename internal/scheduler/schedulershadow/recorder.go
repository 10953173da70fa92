// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package schedulershadow

import (
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
)

// Recorder accumulates comparisons. It is safe for concurrent use: the scheduler's owner reports
// bindings, other goroutines read.
type Recorder struct {
	mu     sync.Mutex
	report Report
	totals struct{ chosen, best, gain int64 } // of judged pods, in points
	judged int                                // pods in totals, placed on a feasible node
}

// New returns a recorder that begins now.
func New(now time.Time) *Recorder {
	return &Recorder{report: Report{APIVersion: "berth.dev/v1alpha1", Kind: "Shadow", Placements: decision.Placements{Since: now.UTC()}}}
}

// Bound records a binding by the other scheduler, and the evaluation of all nodes at the time of
// its decision. If unclear is set, the decision may have been made in another state of the cluster;
// a worse node is then not counted as a difference.
func (r *Recorder) Bound(pod *v1.Pod, node string, e *decide.Evaluation, unclear bool) {
	// compare runs without the lock, because an evaluation has thousands of nodes.
	c := compare(pod, node, e)
	if unclear && c.Outcome != decision.Best {
		c.Outcome = decision.Unclear
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Pods++
	switch c.Outcome {
	case decision.Unclear:
		r.report.Unclear++
		return
	case decision.Rejected:
		r.report.Rejected++
		// Only the first refused pods are kept; all are counted.
		if len(r.report.Refused) < answer.Most {
			r.report.Refused = append(r.report.Refused, c)
		}
		return
	case decision.Best:
		r.report.Best++
	case decision.Worse:
		r.report.Worse++
		r.report.Widest = widest(r.report.Widest, c)
		r.report.MaxGain = max(r.report.MaxGain, c.Gain())
	}

	r.judged++
	r.totals.chosen += c.Total
	r.totals.best += c.BestTotal
	r.totals.gain += c.Gain()
}

// Report returns the results so far.
func (r *Recorder) Report(now time.Time) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := r.report
	report.Until = now.UTC()
	report.Widest = append([]decision.Placement(nil), r.report.Widest...)
	report.Refused = append([]decision.Placement(nil), r.report.Refused...)
	if r.judged > 0 {
		n := float64(r.judged)
		report.MeanTotal, report.MeanBestTotal, report.MeanGain = float64(r.totals.chosen)/n,
			float64(r.totals.best)/n, float64(r.totals.gain)/n
	}
	if report.Worse > 0 {
		report.MeanGainWorse = float64(r.totals.gain) / float64(report.Worse)
	}
	return &report
}

// compare finds the chosen node among the verdicts. A failed evaluation, or a missing node, counts
// as rejected.
func compare(pod *v1.Pod, node string, e *decide.Evaluation) decision.Placement {
	c := decision.Placement{Namespace: pod.Namespace, Name: pod.Name, Node: node, Outcome: decision.Rejected, Feasible: e.Feasible}
	if e.Err != nil {
		c.Why = e.Err.Error()
		return c
	}

	var chosen *decide.NodeVerdict
	for i := range e.Nodes {
		if e.Nodes[i].Node.Name == node {
			chosen = &e.Nodes[i]
		}
	}

	// Several nodes may have the highest total. Choosing any of them is as good as Berth's choice.
	best := e.Best()
	if len(best) > 0 {
		c.BestTotal = best[0].Total
	}

	switch {
	case chosen == nil:
		c.Why = "there is no such node"
	case chosen.Rejection != nil:
		c.Why = chosen.Plugin + ": " + strings.Join(chosen.Rejection.Reasons, ", ")
	case chosen.Total == c.BestTotal:
		c.Outcome, c.Total = decision.Best, chosen.Total
	default:
		c.Outcome, c.Total, c.Best = decision.Worse, chosen.Total, best[0].Node.Name
	}

	return c
}
