// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package effort

// Meter counts what all decisions of a decider have cost. All layers of one decider share it.
type Meter struct {
	// Work is the cost in judgements of a node. It is behaviour, not statistics: group attempts end
	// by it, so it must depend only on the decider's calls and the state of its cluster.
	Work int
	// Looked counts the nodes, groups and cells examined. Only tests read it.
	Looked int
	// Clock counts decisions, to identify the least recently used data.
	Clock uint64
}

// The costs of some operations, in judgements of a node.
const (
	CostOfDecision  = 10 // in which there is nothing to catch up on
	CostOfSorting   = 4  // to find out where a node belongs, for all pods like one
	LooksAJudgement = 2  // as many looks of a survey cost one
)
