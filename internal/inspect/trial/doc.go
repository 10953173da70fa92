// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package trial replays a recorded day under another configuration. A journal has the objects shown
// by the API, and the outcomes of the scheduler's own requests. The objects are replayed: nodes
// appear and disappear, and pods are created, end and are deleted at the recorded times. The
// outcomes would no longer be true, so they are simulated: requests succeed immediately, and the
// core is shown their consequences as by an API server.
//
// Where the two courses of events diverge, the day is changed as little as possible. A pod that
// ended after running for a while runs for the same time, wherever and whenever it starts. A victim
// no longer preempted stays, and its controller's replacement does not appear. A newly preempted
// pod is replaced by its controller.
//
// [Play] plays one course, and [Compare] compares two courses.
package trial
