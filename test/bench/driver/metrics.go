// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// ReadMetrics parses a program's /metrics.
func ReadMetrics(text io.Reader) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(text)
}

// SumMetric adds up the series of a metric that have all of the labels, each given as name=value.
// sum adds the values of gauges and counters and the sample sums of histograms. count adds the
// sample counts of histograms.
func SumMetric(family *dto.MetricFamily, labels ...string) (sum float64, count uint64) {
	for _, m := range family.GetMetric() {
		lacks := func(label string) bool {
			return !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName()+"="+l.GetValue() == label })
		}
		if slices.ContainsFunc(labels, lacks) {
			continue
		}
		sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
		count += m.GetHistogram().GetSampleCount()
	}
	return sum, count
}
