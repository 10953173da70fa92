// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package instrument

import "k8s.io/component-base/metrics"

// Counter returns a counter without labels.
func Counter(name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
}

// CounterVec returns a counter with labels.
func CounterVec(name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
}

// Gauge returns a gauge without labels.
func Gauge(name, help string) *metrics.Gauge {
	return metrics.NewGauge(&metrics.GaugeOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
}

// GaugeVec returns a gauge with labels.
func GaugeVec(name, help string, labels ...string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
}

// Histogram returns a histogram without labels.
func Histogram(name, help string, buckets []float64) *metrics.Histogram {
	return metrics.NewHistogram(&metrics.HistogramOpts{Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA})
}

// HistogramVec returns a histogram with labels.
func HistogramVec(name, help string, buckets []float64, labels ...string) *metrics.HistogramVec {
	return metrics.NewHistogramVec(&metrics.HistogramOpts{Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA}, labels)
}
