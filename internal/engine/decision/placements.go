// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decision

import "time"

// Outcome is the result of comparing the node chosen by another scheduler with the best nodes.
type Outcome string

const (
	Best     Outcome = "Best"     // one of the nodes with the highest total
	Worse    Outcome = "Worse"    // another node had a higher total
	Rejected Outcome = "Rejected" // the pod did not fit on the node
	Unclear  Outcome = "Unclear"  // Worse or Rejected, but possibly decided in an unknown state
)

// Placement describes one pod bound by another scheduler.
type Placement struct {
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
func (p *Placement) Gain() int64 {
	if p.Outcome != Worse {
		return 0
	}
	return p.BestTotal - p.Total
}

// Placements summarizes the placements of another scheduler. The scheduler's shadow reports it.
type Placements struct {
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`
	Pods     int       `json:"pods"`
	Best     int       `json:"best"`
	Worse    int       `json:"worse"`
	Rejected int       `json:"rejected"`
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
	// Widest holds the placements with the largest gains. Refused holds the first placements on an
	// infeasible node.
	Widest  []Placement `json:"widest,omitempty"`
	Refused []Placement `json:"refused,omitempty"`
}
