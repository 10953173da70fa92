// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package simkubelet makes the decisions of the simulated nodes' kubelets: when a node registers,
// renews its Lease and reports its status, which pods it admits or rejects, how their containers
// start, become ready, end and restart, and when a deleted pod is removed.
//
// It is a core: watches go in (NodeSeen, PodSeen, ...), actions are returned (Take), the time is an
// argument, and it never waits for or calls an API server. The state of a pod is its status in the
// API and nothing else, so a restart continues where the last process ended. Package simnodes runs
// it on a cluster.
package simkubelet
