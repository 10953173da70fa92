// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"cmp"
	"encoding/json"

	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/kube/instrument"
)

// Reports are the reports of both components' shadows. Either may be missing: the two shadows are
// separate processes, and may run without each other.
type Reports struct {
	Controller *Report     `json:"controller,omitempty"`
	Scheduler  *Placements `json:"scheduler,omitempty"`
}

// Placements is the report of the scheduler's shadow, as written by package
// internal/scheduler/schedulershadow.
type Placements struct{ decision.Placements }

// PlacementsOf parses the scheduler's report, or returns nil if the text is not such a report.
// Unknown fields are ignored, so that a report of a newer version can be read.
func PlacementsOf(text []byte) *Placements {
	var kind struct{ Kind string }
	var p Placements
	if json.Unmarshal(text, &kind) != nil || kind.Kind != "Shadow" || json.Unmarshal(text, &p) != nil {
		return nil
	}
	return &p
}

// Read parses the response of /shadow, or one component's report file.
func Read(text []byte) (Reports, error) {
	var kind struct{ Kind string }
	if err := json.Unmarshal(text, &kind); err != nil {
		return Reports{}, err
	}
	var r Reports
	// The kind distinguishes the file of one component from the response of /shadow, which has the
	// reports of both components.
	switch kind.Kind {
	case "Shadow":
		r.Scheduler = PlacementsOf(text)
	case "ControllerShadow":
		r.Controller = &Report{}
		return r, json.Unmarshal(text, r.Controller)
	default:
		return r, json.Unmarshal(text, &r)
	}
	return r, nil
}

// Merge adds the other reports, replacing existing ones.
func (r *Reports) Merge(other Reports) {
	r.Controller = cmp.Or(other.Controller, r.Controller)
	r.Scheduler = cmp.Or(other.Scheduler, r.Scheduler)
}

// UpdateMetrics sets the gauges from the reports.
func UpdateMetrics(r Reports) {
	if r.Controller != nil {
		for kind, t := range r.Controller.Tallies {
			agreement.WithLabelValues(string(kind)).Set(t.Agreement())
		}
	}
	if r.Scheduler != nil {
		for outcome, n := range map[string]int{"best": r.Scheduler.Best, "worse": r.Scheduler.Worse,
			"rejected": r.Scheduler.Rejected, "unclear": r.Scheduler.Unclear} {
			placements.WithLabelValues(outcome).Set(float64(n))
		}
		meanGain.Set(r.Scheduler.MeanGain)
	}
}

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
