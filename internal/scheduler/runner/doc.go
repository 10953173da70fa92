// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package runner runs the scheduling cycle (package cycle) against an API server. It makes no
// decisions.
//
// The core runs in the event loop shared with the controllers (package loop). Watches and workers
// never touch it; they leave events in its inbox. After taking in all events, the loop sends a
// tick, which decides one pod at most, and so on. Each action of the core goes to workers or a
// goroutine, and its outcome returns as an event with the action's ticket.
//
// Bindings go to a bounded number of workers in order, and can be withdrawn until a worker begins
// them. The work before a binding (volumes, device claims, out-of-tree plugins at PreBind) runs on
// a goroutine per pod. If it is unknown whether a binding or an allocation of devices was carried
// out, the API server is queried until the outcome is clear. Other workers delete victims and write
// statuses, and events give way to bindings; writes to one pod keep the order of the core's
// actions.
package runner
