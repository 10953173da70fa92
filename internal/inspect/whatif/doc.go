// Package whatif says what would come of operations on a cluster before they are done: who would
// leave when, where each would go, who would be left without a node and why, which disruption
// budgets stand in the way, and how full the cluster would be.
//
// The operations are done to a world of package simulate, in which the same cores decide as live:
// admission, scheduling, preemption, eviction, budgets. Nothing is written to any cluster. The
// answer, a [Forecast], is plain data for people and programs.
package whatif
