// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics counts the operations of the live scheduler, under the names, labels, types,
// buckets and stability of kube-scheduler v1.37 wherever the meaning is the same, so that
// dashboards and alerts keep working. The names of Berth's own metrics begin with berth_.
//
// A [Recorder] implements the scheduler's observer and is scraped as a prometheus.Gatherer. It has
// a separate registry: a shared one would clash with kube-scheduler's in the same process, for
// example in tests. docs/reference/metrics.md lists all metrics; its test keeps it current.
package metrics
