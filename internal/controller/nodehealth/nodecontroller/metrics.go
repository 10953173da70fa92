// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodecontroller

import (
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/kube/instrument"
)

const subsystem = "node_collector" // as upstream

// The first six metrics have the names, labels and meanings of upstream's metrics. As in upstream,
// the label zone contains a zero byte.
var (
	zoneHealth     = instrument.GaugeVec(subsystem+"_zone_health", "Gauge measuring percentage of healthy nodes per zone.", "zone")
	zoneSize       = instrument.GaugeVec(subsystem+"_zone_size", "Gauge measuring number of registered Nodes per zones.", "zone")
	unhealthyNodes = instrument.GaugeVec(subsystem+"_unhealthy_nodes_in_zone", "Gauge measuring number of not Ready Nodes per zones.", "zone")
	evictionsTotal = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "evictions_total",
		Help:           "Number of Node evictions that happened since current instance of NodeController started.",
		StabilityLevel: metrics.STABLE,
	}, []string{"zone"})
	passDuration = instrument.Histogram(subsystem+"_update_all_nodes_health_duration_seconds",
		"Duration in seconds for NodeController to update the health of all nodes.",
		metrics.ExponentialBuckets(0.01, 4, 8))
	writeDuration = instrument.Histogram(subsystem+"_update_node_health_duration_seconds",
		"Duration in seconds for NodeController to update the health of a single node.",
		metrics.ExponentialBuckets(0.001, 4, 8))

	evictionRate = instrument.GaugeVec("berth_node_health_eviction_rate_nodes_per_second",
		"Nodes per second of the zone that may get a taint that evicts.", "zone")
	evictionsWaiting = instrument.GaugeVec("berth_node_health_evictions_waiting",
		"Nodes of the zone that are not ready and wait for a taint that evicts.", "zone")
	droppedWrites = instrument.Counter("berth_node_health_dropped_writes_total",
		"Changes of nodes that the API server accepted and did not store, because a policy, webhook or controller dropped them.")
)

// Metrics returns the package's metrics, for the registry of the process that runs it.
func Metrics() []metrics.Registerable {
	return []metrics.Registerable{zoneHealth, zoneSize, unhealthyNodes, evictionsTotal, passDuration, writeDuration,
		evictionRate, evictionsWaiting, droppedWrites}
}

// updateMetrics updates the metrics from the Core. The loop calls it each second on the goroutine
// that owns the Core. Gauges are reset to remove the series of deleted zones.
func (c *Controller) updateMetrics() {
	for _, gauge := range []*metrics.GaugeVec{zoneHealth, zoneSize, unhealthyNodes, evictionRate, evictionsWaiting} {
		gauge.Reset()
	}
	for _, z := range c.core.Zones() {
		// A zone without counted nodes is healthy.
		health := 100.
		if z.Size > 0 {
			health = float64(100*(z.Size-z.Unhealthy)) / float64(z.Size)
		}
		zoneHealth.WithLabelValues(z.Name).Set(health)
		zoneSize.WithLabelValues(z.Name).Set(float64(z.Size))
		unhealthyNodes.WithLabelValues(z.Name).Set(float64(z.Unhealthy))
		evictionsTotal.WithLabelValues(z.Name).Add(float64(max(0, z.Evictions-c.reported[z.Name])))
		evictionRate.WithLabelValues(z.Name).Set(z.Rate)
		evictionsWaiting.WithLabelValues(z.Name).Set(float64(z.Waiting))
		c.reported[z.Name] = z.Evictions
	}
}
