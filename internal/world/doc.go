// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package world holds a cluster other than the live one: its API objects, the owners of its pods,
// and the engine's cluster.
//
// Open takes the objects. Put, Delete, Place and Remove change the world, and Undo restores
// everything changed since a Mark. Fork begins a second course of events, sharing the unchanged
// parts. The consequences of a change are not decided here, but in the packages below this one
// (workload, disruption, quota, claimcontrollers) and by their callers.
//
//	w := world.Open(objects)
//	mark := w.Mark()
//	w.Remove(p)                        // tried
//	d := decider.Decide(next)          // decided
//	w.Undo(mark)                       // restored
package world
