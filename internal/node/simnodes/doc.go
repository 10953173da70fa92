// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package simnodes runs simulated nodes on a cluster: thousands in one process, which register,
// send heartbeats, and run and terminate pods like kubelets.
//
// Package simkubelet makes the nodes' decisions. This package feeds it from one watch of nodes and
// one of bound pods, and carries out its actions with a bounded number of workers. One goroutine
// owns the fleet; there are no goroutines per node or pod. The type Faults writes the annotations
// that make nodes fail.
package simnodes
