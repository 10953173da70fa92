// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package soak tests Berth under failures. A campaign starts a whole cluster of processes, changes
// its workloads, and causes failures of every kind, generated from one seed. An observer watches
// the API server directly and compares its observations with Berth's promises.
//
// A campaign goes through rounds. In the storm, processes are killed and suspended; requests are
// refused, lost, or executed without a response; watches break, components are cut off from the API
// server, and the disk of etcd fills up. Then the faults end, while taints and silent nodes (nodes
// without heartbeats) remain: all pods due for eviction must be evicted now. Then nodes recover,
// and the cluster must reach rest: every pod runs, or the plain evaluator agrees that it cannot.
//
// Three other campaigns use the same cluster and observer: in tenant.go one user is hostile, in
// upgrade.go every component is replaced by another version, and in faults.go the requests of each
// component have one of the faults of package virtual for more than a minute.
//
// Each promise has a separate file: bound.go, room.go, evicted.go, preempted.go, rest.go,
// bounds.go. The observer receives events and times from its callers, so that this package's tests
// can simulate violations and verify that the observer detects them.
package soak
