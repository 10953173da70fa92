// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package bench measures the cost of a decision, kube-scheduler's and Berth's in one run, from a
// *v1.Pod to its node, with the bookkeeping for the next decision and without any API.
//
// The modes and the goals are in the table printed by `make bench` ([Modes], [Report]).
// kube-scheduler runs through SchedulePod, like its scheduling cycle, once with its default
// sampling and once evaluating all nodes, as Berth always does. Ratios compare measurements on this
// machine in this run; a benchmark has no failing time limits.
package bench
