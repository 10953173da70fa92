// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package whatif forecasts the effect of operations on a cluster: which pods would leave when,
// where each would go, which would remain without a node and why, which disruption budgets block
// drains or are violated, and the cluster's utilisation.
//
// It applies the operations to a world of package simulate, with the same admission, scheduling,
// preemption, eviction and budget logic as in a live cluster. It writes nothing to any cluster. The
// result, a [Forecast], is plain data for people and programs.
package whatif
