// Package whatif forecasts the effect of operations on a cluster: which pods would leave when,
// where each would go, which would be left without a node and why, which disruption budgets block
// drains or are violated, and how full the cluster would be.
//
// The operations are applied to a world of package simulate, in which the same cores decide as
// live: admission, scheduling, preemption, eviction, budgets. Nothing is written to any cluster.
// The answer, a [Forecast], is plain data for people and programs.
package whatif
