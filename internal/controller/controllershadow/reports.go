// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"encoding/json"

	"github.com/berth-k8s/berth/internal/engine/decision"
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
	if other.Controller != nil {
		r.Controller = other.Controller
	}
	if other.Scheduler != nil {
		r.Scheduler = other.Scheduler
	}
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
