// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/kube/instrument"
)

var (
	evictions = instrument.Counter("berth_rebalance_evictions_total",
		"Pods evicted so that their successors land on a better node.")
	moves = instrument.CounterVec("berth_rebalance_moves_total",
		"Finished moves, by outcome. Elsewhere, Pending, Unready and Stuck are misses; Withheld was refused, and Ended was no "+
			"longer needed.", "result")
	runs = instrument.CounterVec("berth_rebalance_runs_total",
		"Runs that ended: done when nothing was left to move, or stopped before.", "end")
	guarded = instrument.CounterVec("berth_eviction_guard_steps_total",
		"Steps of replacements for held evictions: Raised (one more replica), Arrived (the replacement has a node), Awaited, "+
			"Replaced (the pod left), Restored (given up).", "step")
	guardSeconds = instrument.HistogramVec("berth_eviction_guard_duration_seconds",
		"Time from the additional replica for a held eviction to its end: Replaced (the pod left) or Restored (given up).",
		metrics.ExponentialBuckets(1, 2, 10), "end")
	stays = instrument.GaugeVec("berth_rebalance_stays",
		"Pods that should move and could not, as of the last plan, by reason.", "reason")
	// ClusterCost and ClusterCostBound are set by the goal cost.
	ClusterCost = instrument.GaugeVec("berth_cluster_cost_per_hour",
		"Cost of the nodes with a known price as of the last plan of the goal cost, by NodePool; empty for nodes without one.", "nodepool")
	ClusterCostBound = instrument.GaugeVec("berth_cluster_cost_bound_per_hour",
		"The NodePool's share of a lower bound on the cost of nodes of the catalog for the same pods.", "nodepool")
)

// Metrics returns the package's metrics, for the registry of the process that runs it. They are
// global, so a process must not have more than one Mover.
func Metrics() []metrics.Registerable {
	return []metrics.Registerable{evictions, moves, runs, stays, guarded, guardSeconds, ClusterCost, ClusterCostBound}
}

// countMove counts evictions, and moves by result. It ignores results that only report progress.
func countMove(a execute.MoveProgress) {
	switch a.Result {
	case execute.Evicted:
		evictions.Inc()
	case execute.Proved, execute.Resumed, execute.Unreserved, execute.Direct, execute.Raised,
		execute.Awaited, execute.Replaced, execute.Restored:
	default:
		moves.WithLabelValues(string(a.Result)).Inc()
	}
}

// countRun counts a completed run, and publishes the stays of its last plan. The reasons of the
// previous plan are reset.
func countRun(a execute.Done) {
	end := "done"
	if a.Stopped != "" {
		end = "stopped"
	}
	runs.WithLabelValues(end).Inc()
	// Otherwise a reason without pods would keep its last number.
	stays.Reset()
	if a.Plan == nil {
		return
	}
	for i := range a.Plan.Stays {
		stays.WithLabelValues(string(a.Plan.Stays[i].Code)).Inc()
	}
}
