// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package simkubelet makes the decisions of the simulated nodes' kubelets: when a node registers,
// renews its Lease and reports its status, which pods it admits or rejects, how their containers
// start, become ready, end and restart, and when a deleted pod is removed.
//
// It is a pure core: it receives watch events (NodeSeen, PodSeen, ...) and the time as arguments,
// returns actions (Take), and never calls or waits for an API server. A pod's only state is its
// status in the API, so a restart continues where the last process ended. Package simnodes runs it
// on a cluster.
package simkubelet
