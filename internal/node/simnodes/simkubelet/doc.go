// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package simkubelet makes the decisions of the simulated nodes' kubelets. It decides when a node
// registers, renews its Lease and reports its status, and which pods the node admits. It also
// decides how the pods' containers start, become ready, end and restart, and when a deleted pod is
// removed.
//
// It is a pure core: it receives watch events (NodeSeen, PodSeen, ...) and the time as arguments,
// returns actions (Take), and never calls or waits for an API server. The state that must survive a
// restart is in the API, so a new process continues where the last one ended. Package simnodes
// connects this package to a cluster.
package simkubelet
