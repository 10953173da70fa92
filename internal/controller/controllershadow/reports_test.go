// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"testing"

	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/engine/decision"
)

// TestMetricsTellAgreementAndGain verifies the metrics of the reports, as shown on a dashboard.
func TestMetricsTellAgreementAndGain(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	registry.MustRegister(Metrics()...)
	UpdateMetrics(Reports{
		Controller: &Report{Tallies: map[Kind]*Tally{Eviction: {Decisions: 4, Outcomes: map[Outcome]int{AtOnce: 3, OnlyOther: 1}}}},
		Scheduler:  &Placements{decision.Placements{Best: 6, Worse: 3, Rejected: 1, MeanGain: 12.5}},
	})
	scraped, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"berth_shadow_agreement_ratio": 0.75, "berth_shadow_placement_mean_gain_points": 12.5}
	for _, family := range scraped {
		if value, asked := want[family.GetName()]; asked {
			if got := family.GetMetric()[0].GetGauge().GetValue(); got != value {
				t.Errorf("%s is %v, want %v", family.GetName(), got, value)
			}
			delete(want, family.GetName())
		}
	}
	if len(want) > 0 {
		t.Errorf("not scraped: %v", want)
	}
}
