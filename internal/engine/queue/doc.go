// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package queue holds the pending pods: the order of their attempts, their back-offs, and the
// events they wait for.
//
// A pod not being decided or bound is in one of four places. Active pods are decided in order: by
// priority, then by waiting time. A rejected pod waits for an event that may change the verdict of
// one of its rejectors, for at most five minutes. A pod that is woken before the end of its
// back-off, or that returns from a failed attempt, backs off. The back-off is one second after the
// first attempt, and doubles with each further attempt, up to ten seconds, or longer for pods that
// are decided together. The gate of a gated pod is called again on the events registered by the
// gate, including changes of the pod itself.
//
// Interests define the helpful events. After an attempt, they are also matched against the events
// that occurred during it. Waiting pods of one class with the same rejectors form a group, and a
// hint is called once per event for the whole group, unless it examines individual pods. Groups are
// indexed by their needs (Narrowing), so that an event need not be compared with every group.
//
// The queue is plain data with one owner, and uses no clock: the time is an argument.
package queue
