// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package controllerjournal records the events of the cores of taint eviction and node health,
// together with the resulting actions, and replays them. The cores are pure: the same events lead
// to the same actions, byte for byte. [Replay] compares the actions with the recorded ones, and
// [Story] prints the events and decisions about one pod or node.
//
// When a journal continues in another file, the core keeps running: the file begins with the core's
// whole state ([eviction.Knowledge], [nodehealth.Knowledge]), so that it can be replayed
// independently.
//
// Events contain only the cores' small representations of pods and nodes: no environments,
// commands, arguments, annotations or Secrets.
package controllerjournal
