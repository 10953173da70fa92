// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package runner runs the scheduling cycle (package cycle) against an API server. It makes no
// decisions.
//
// The core runs in an event loop (package loop), like the cores of the controllers. Watches and
// workers never access the core; they put events into the loop's inbox. When the core has processed
// all events, the loop sends it a Tick, in which the core decides one pod at most. Workers or
// separate goroutines carry out the actions of the core, and the outcome of an action is an event
// with the action's ticket.
//
// A bounded number of workers send bindings in order; a binding can be withdrawn until a worker
// begins it. The work before a binding (volumes, device claims, out-of-tree plugins at PreBind)
// runs on a goroutine per pod. If it is unknown whether a binding or an allocation of devices was
// carried out, the object is read until the outcome is known. Other workers delete victims and
// write statuses. The statuses of one pod are written in the order of the core's actions. Events
// are written at a limited rate while there are bindings to send.
package runner
