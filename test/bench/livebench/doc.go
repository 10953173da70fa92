// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package livebench measures kube-scheduler and Berth's scheduler against a real API server, one
// after the other in one run: pods per second, CPU per pod, memory, and the latency of one pod on
// an idle cluster.
//
// etcd, an unmodified kube-apiserver, and one of the schedulers at a time run as separate
// processes, built from the same modules. The nodes are objects with a healthy status but without a
// kubelet. For each mode ([Modes]) the pods are pending before the scheduler starts. The scheduler
// is started, observed until the last pod is bound and its events are written, and then stopped.
// Its usage is taken from the kernel's accounting. [Run] measures and [Report] prints the tables.
// Run first measures the API server's rate of bindings without any decisions, an upper limit for
// every scheduler. Alternatively, Run measures the startup of pods ([Startup]) or the binding of
// gangs ([Gang]).
package livebench
