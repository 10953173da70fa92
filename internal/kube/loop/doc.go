// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package loop runs a core that decides without side effects: one goroutine, the owner, calls the
// core sequentially with the events of watches, the responses to requests, and Ticks. The resulting
// actions are carried out concurrently. The scheduling cycle, taint eviction, node health and
// rebalancing each run in a Loop.
//
// Events and responses are queued in an inbox. Adding a response never blocks, because the owner
// itself may add it. A watch blocks only while the inbox holds 256 MiB of objects or more. This is
// a last resort, because the API server closes a watch that is not read, and the list that follows
// costs more than the queued events. On the other hand, a list contains each object only once,
// however often it has changed, so the inbox stays bounded.
//
// The owner empties the inbox before each Tick, so that every decision is based on the newest
// state.
package loop
