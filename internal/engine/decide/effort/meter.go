// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package effort

// Meter counts the cost of all decisions of a decider. All layers of one decider share it.
type Meter struct {
	// Work is the cost in judgements of a node. Work affects results: an attempt to place a pod
	// group ends when Work reaches a limit. Work must therefore depend only on the decider's calls
	// and the state of its cluster.
	Work int
	// Looked counts the nodes, groups and cells examined. Only tests read it.
	Looked int
	// Clock counts decisions, to identify the least recently used data.
	Clock uint64
}

// The costs of some operations, in judgements of a node.
const (
	CostOfDecision  = 10 // decision without changes to catch up on
	CostOfSorting   = 4  // finding a node's group, for all pods of a class
	LooksAJudgement = 2  // number of looks of a survey that cost one judgement
)
