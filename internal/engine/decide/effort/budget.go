// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package effort

import "github.com/berth-k8s/berth/internal/engine/cluster"

// Budget is the remaining effort of an attempt; nil is unbounded.
type Budget struct {
	Left  int
	c     *cluster.Cluster
	looks int // looks of c already subtracted
}

// NewBudget returns the budget of a new attempt.
func NewBudget(limits *Limits, c *cluster.Cluster) *Budget { return &Budget{limits.Effort, c, c.Looks} }

// Spend subtracts judgements, and the looks counted by the cluster since the last call, from the
// budget. It returns false if the budget is exhausted.
func (b *Budget) Spend(judgements int) bool {
	if b == nil {
		return true
	}
	b.Left -= judgements + b.c.Looks - b.looks
	b.looks = b.c.Looks
	return b.Left > 0
}

// IsSpent reports whether the budget is exhausted.
func (b *Budget) IsSpent() bool { return b != nil && b.Left <= 0 }

// TooLongError is the error of an attempt that exhausted its budget.
type TooLongError struct {
	What string // operation that took too long
}

func (e *TooLongError) Error() string {
	return e.What + " takes too long with this many nodes and pods; the pod is tried again after its back-off"
}

// Unschedulable marks the error as a verdict on the pod, not a failure of the scheduler.
func (e *TooLongError) Unschedulable() bool { return true }
