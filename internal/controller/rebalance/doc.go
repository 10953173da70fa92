// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package rebalance decides which running pods to move, and proves each move before making it.
//
// Make takes a State (the API objects of a cluster) and a Policy, and returns a Plan: an ordered
// list of moves, each with the candidate nodes of the successor, the improvement, the cost, and the
// reason for preferring it to the runner-up. It uses no client and no clock; the same state and
// policy give the same plan.
//
// A move is proved with the scheduling engine (package decide), on the cluster left by the
// preceding moves:
//
//   - Pending pods are placed first. The successor is built as the victim's controller would build
//     it.
//   - The successor's node is decided twice: while the victim terminates, and after its removal.
//     Every best node of either decision must be acceptable, and none may be the victim's node:
//     otherwise the pod could return to it.
//   - The move violates no further constraint of any other pod, overdraws no budget, preempts no
//     pod, and leaves no pod pending.
//   - The policy's gauges go down. The whole policy shares one ordered list of gauges, and a move
//     raising an earlier gauge is refused; so two strategies cannot move one pod back and forth.
//
// It is safe to stop after any move. Moves useful only together (a node is either empty or not)
// form an Attempt: all of them are made, or all are undone. The plan ends when nothing more can be
// proved, so a second plan from the resulting state is empty.
package rebalance
