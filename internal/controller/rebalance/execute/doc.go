// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package execute carries out the plans of package rebalance: moves, drains and rolls.
//
// A mover removes pods: it evicts them, or creates their successors first (a surge), and reserves
// room for the successors. It handles lost responses, refusals and missing pods for all callers.
// Its two policies, the Core and the Drainer, choose the next pod and the conditions to wait for.
//
// The Core makes one move at a time, each proved on the newest state immediately before it is made.
// It requests a plan, makes the first move, waits until the successor is ready, and requests
// another plan. Every executed move is therefore the first move of a newly proved plan. The Core
// never relies on the later moves of a plan.
//
// Before evicting a pod, the Core writes the move to a journal, a single API object. A process that
// starts with a journaled move looks at the victim: if it is still running, the move is dropped; if
// it is terminating or deleted, the process waits for its successor. So a crash never causes a
// second eviction for the same reason. Writes to the journal carry the resource version that was
// read. If two processes carry out moves, one of them gets a conflict and stops. The journal also
// lists workloads resting after a recent move.
//
// Berth's scheduler reserves a successor's room, see package cycle. Package execute does not rely
// on the reservation: another scheduler may place the successor, and a pod of a higher priority may
// take the room. Deviations are detected on arrival. The run ends after two successive successors
// that land elsewhere, or after a successor that does not fit on any node.
//
// The Drainer drains nodes, and the Roller runs a Drainer for each turn of nodes. The Drainer uses
// the same kind of plan, lets many pods terminate concurrently, and needs no journal. It reserves
// room for a single successor at a time: the next pod is evicted once the previous successor is
// scheduled.
package execute
