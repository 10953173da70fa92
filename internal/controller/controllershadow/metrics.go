// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/kube/instrument"
)

// Metrics for an operator while the shadow runs. The first three cover the controllers; the rest
// are read from the scheduler's report, if there is one.
var (
	decisions = instrument.CounterVec("berth_shadow_decisions_total",
		"Decisions of kube-controller-manager's node-lifecycle and taint-eviction controllers, or of "+
			"Berth's in their place, by how the two compare: same, later and earlier are of the other controller; "+
			"only-berth and only-other were not followed within a minute.", "kind", "outcome")
	lag = instrument.HistogramVec("berth_shadow_lag_seconds",
		"By how much the other controller decided later than Berth would have, of decisions that both make.",
		[]float64{-60, -10, -5, -1, 0, 1, 5, 10, 30, 60, 120, 300, 600}, "kind")
	agreement = instrument.GaugeVec("berth_shadow_agreement_ratio",
		"Fraction of decisions that both make, at whatever time, since the start.", "kind")
	placements = instrument.GaugeVec("berth_shadow_placements",
		"Pods that another scheduler bound, by how Berth's scheduler judges the node, as in its report "+
			"of --shadow-report.", "outcome")
	meanGain = instrument.Gauge("berth_shadow_placement_mean_gain_points",
		"How many more points the best node has than the node chosen by another scheduler, on average "+
			"over the pods that were judged, as in the report of --shadow-report.")
)

// Metrics returns the package's metrics, for the registry of the process that runs it.
func Metrics() []metrics.Registerable {
	return []metrics.Registerable{decisions, lag, agreement, placements, meanGain}
}

// countDecision counts a decision in the metrics.
func countDecision(d Decision) {
	decisions.WithLabelValues(string(d.Kind), string(d.Outcome)).Inc()
	if d.Outcome != OnlyBerth && d.Outcome != OnlyOther {
		lag.WithLabelValues(string(d.Kind)).Observe(d.LagSeconds)
	}
}
