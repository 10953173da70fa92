// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodehealth derives the consequences of a node's state for its pods: when a silent node
// counts as unreachable, how conditions and cordons map to taints, and, per zone, how fast evicting
// taints are added when many nodes fail together.
//
// Like the Core of package eviction, Core is a state machine without client, goroutine or clock.
// Its inputs are observed nodes and Leases, and its outputs are writes. It measures silence by its
// own clock from the observation of signs of life, and never by times written by a node. Writes are
// conditional on the observed version of a node, and the only taints they change are the taints
// managed by Core (IsOwn). Package nodecontroller runs Core against an API server; package simulate
// runs it in virtual time.
package nodehealth
