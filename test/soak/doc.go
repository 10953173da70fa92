// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package soak is a campaign to test whether Berth can be trusted: a whole cluster of processes,
// with changing workloads, suffers every kind of failure, generated from one seed; and an observer
// watches the API server directly and compares its observations with Berth's promises.
//
// A campaign goes through rounds. In the storm, processes are killed and suspended; requests are
// refused, lost, or executed without a response; watches break, parts are partitioned, and the disk
// of etcd fills up. Then faults end while taints and silent nodes remain: all pods due to leave
// must leave now. Then nodes recover, and the cluster must reach rest: every pod runs, or the plain
// evaluator agrees that it cannot.
//
// Two other campaigns use the same cluster and observer: in tenant.go one user is hostile, and in
// upgrade.go every part is replaced by another version.
//
// Each promise has a separate file: bound.go, room.go, evicted.go, preempted.go, rest.go,
// bounds.go. The observer judges only reported events and times, so that this package's tests can
// report violations and verify their detection.
package soak
