// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package bench measures the cost of a scheduling decision of kube-scheduler and of Berth in one
// run. A decision begins with a *v1.Pod and ends with its node. It includes the bookkeeping for the
// next decision, and no API requests.
//
// The modes and the goals are in the table printed by `make bench` ([Modes], [Report]).
// kube-scheduler runs through SchedulePod, like its scheduling cycle, once with its default
// sampling and once evaluating all nodes, as Berth always does. Ratios compare measurements of one
// run on one machine. No time limit makes a benchmark fail.
package bench
