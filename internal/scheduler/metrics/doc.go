// Package metrics counts what the live scheduler does, under the names, labels,
// types, buckets and stability of kube-scheduler v1.36 wherever the meaning is
// the same, so that dashboards and alerts go on working; Berth's own begin with
// berth_scheduler_.
//
// A [Recorder] is told by the scheduler (it is its live.Observer) and by what
// runs it, and is scraped as a prometheus.Gatherer. It has a registry of its
// own: beside kube-scheduler in one process, as tests have it, a shared one
// would clash. docs/metrics.md lists all; its test keeps it current.
package metrics
