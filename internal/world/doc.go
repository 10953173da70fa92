// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package world holds a cluster other than the live one: its API objects, the owners of its pods,
// and the engine's cluster.
//
// Open returns a world of the given objects. Put, Delete, Place and Remove change the world, and
// Undo restores everything changed since a Mark. Fork returns an independent copy, which shares the
// unchanged objects. This package does not simulate the consequences of a change; its subpackages
// (workload, disruption, quota, claimcontrollers) and their callers do.
//
//	w := world.Open(objects)
//	mark := w.Mark()
//	w.Remove(p)                        // tried
//	d := decider.Decide(next)          // decided
//	w.Undo(mark)                       // restored
package world
