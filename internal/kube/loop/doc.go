// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package loop runs a core that decides without side effects: one goroutine owns it and hands it,
// sequentially, the events of watches, the responses to requests, and the passing of time; its
// actions are carried out concurrently. The loop decides nothing. The scheduling cycle, taint
// eviction, node health and rebalancing run in it.
//
// Leaving a response in the inbox never blocks: it may be left by the owner itself. Watches wait
// only while 256 MiB of objects are in the inbox: the API server closes an unread watch, and the
// following list costs both sides more than the events waiting here, but it shows each object once,
// however often it has changed meanwhile.
//
// The owner takes in the whole inbox before it lets time take effect, so that the core decides on
// the newest state, and never twice without looking at the inbox in between.
package loop
