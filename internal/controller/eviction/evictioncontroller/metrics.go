// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/kube/instrument"
)

// The first four metrics have the names and meanings of upstream's metrics, so that dashboards keep
// working. The others are specific to Berth. Growing retries indicate that the API server refuses
// requests, and growing averted evictions that its watches lag.
var (
	deletions = instrument.Counter("taint_eviction_controller_pod_deletions_total",
		"Total number of Pods deleted by TaintEvictionController since its start.")
	deletionDuration = instrument.Histogram("taint_eviction_controller_pod_deletion_duration_seconds",
		"Latency, in seconds, between the time when a taint effect has been activated for the Pod and "+
			"its deletion via TaintEvictionController.",
		[]float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240})
	deviceDeletions = instrument.Counter("device_taint_eviction_controller_pod_deletions_total",
		"Total number of Pods deleted by DeviceTaintEvictionController since its start.")
	deviceDeletionDuration = instrument.Histogram("device_taint_eviction_controller_pod_deletion_duration_seconds",
		"Latency, in seconds, between the time when a device taint effect has been activated and a "+
			"Pod's deletion via DeviceTaintEvictionController.",
		[]float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240})
	pending = instrument.GaugeVec("berth_eviction_pending",
		"Pods that a NoExecute taint evicts, immediately or when their tolerationSeconds expire, by the taint that evicts them "+
			"first.", "taint")
	retries = instrument.Counter("berth_eviction_retries_total",
		"Retries of pod evictions.")
	cancelled = instrument.Counter("berth_eviction_cancelled_total",
		"Pending evictions that were cancelled because they were no longer needed.")
	averted = instrument.Counter("berth_eviction_averted_total",
		"Evictions that were due by the watched state, and not by the live state read immediately before.")
)

// Metrics returns the package's metrics, for the registry of the process that runs it.
func Metrics() []metrics.Registerable {
	return []metrics.Registerable{deletions, deletionDuration, deviceDeletions, deviceDeletionDuration, pending,
		retries, cancelled, averted}
}

// countDelete counts an accepted delete, and records its delay after the pod's deadline. A failed
// delete is not counted; a later attempt may be.
func countDelete(err error, due eviction.Due) {
	if err != nil {
		return
	}
	count, duration := deletions, deletionDuration
	if due.OfDevice() {
		count, duration = deviceDeletions, deviceDeletionDuration
	}
	count.Inc()
	// The deadline is by the loop's clock, but time.Since uses the wall clock, which may have been
	// set back.
	duration.Observe(max(0, time.Since(due.At).Seconds()))
}

// updateMetrics updates the metrics from the Core. The loop calls it each second on the goroutine
// that owns the Core.
func (e *Evictor) updateMetrics() {
	// Reset removes the series of taints without pending evictions.
	pending.Reset()
	for taint, n := range e.core.Pending() {
		pending.WithLabelValues(taint).Set(float64(n))
	}
	now := e.core.Stats()
	// The Core's counts are totals, but a counter needs the increments.
	retries.Add(float64(now.Retries - e.reported.Retries))
	cancelled.Add(float64(now.Cancelled - e.reported.Cancelled))
	averted.Add(float64(now.Averted - e.reported.Averted))
	e.reported = now
}
