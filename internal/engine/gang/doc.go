// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package gang decides the pods of a pod group together: it finds nodes for the needed number of
// pods, the pods to evict for them, or the room to reserve until other pods end. It decides for
// package cycle, which turns the results into actions.
//
// The input is a [Request]: the cluster model, the group, its pending pods in order and the minimum
// number to place, the limits of the attempt, and the memory of earlier attempts. The output is
// places ([Attempt.Place]), a [RoomPlan], or a [Verdict] with the reason why there is neither. The
// package binds no pods, writes no objects and reports no events. The same request on the same
// cluster with the same random source gives the same result; the random source is the cycle's, and
// every draw is part of the output.
//
// # Layers
//
// Each type owns its fields and uses only the types below it:
//
//	            cycle: queue, rescue plugins, reservations, Permit, actions
//	─────────────┬────────────────────────────────────────────▲────────────
//	             ▼ Request                                     │ Verdict
//	          Attempt      the order of the steps, for one group
//	             │
//	         RoomMaker     the cheapest domain; pods that end without eviction
//	             │
//	         victimSearch  victims, reprieve: for the members of a group, or for a tree
//	             │
//	          Domains      one domain of a topology key: bound, confine, score
//	             │
//	          Placer       passes in several orders; then a search
//	             │
//	         Tentative     members counted on nodes, and taken back  ──► Host
//	             │
//	           Bound       work, effort, memory of earlier attempts
//	             │
//	           Units       pods that leave together, and protection from eviction
//	─────────────┼──────────────────────────────────────────────────────────
//	             ▼
//	          decide: one pod, all nodes        cluster: the model
//
// Hypotheses modify the cluster model itself, so that decisions observe them: members are placed,
// and pods are removed ([RemovedPods]), protected ([ProtectedPods]) or stripped of their
// nominations. The function that makes a hypothesis always reverts it in the same step. After a
// panic, the cycle takes members off their nodes.
//
// # Trees
//
// Package cycle places the groups of a tree, each by an Attempt. To make room for a tree, it calls
// [Attempt.PlanTree]. The victimSearch then lets the tree place its groups in turn. If a group does
// not fit, the RoomMaker of that group finds the pods to evict ([TreeRoom]).
//
// # What is exact, and what is bounded
//
// If members are alike, one pass is exact: all of them take the same room, so no other order places
// more members. If members differ, several orders are tried, followed by a depth-first search for
// placements; the search is exact unless it reaches its limit, which the verdict reports. Domains
// are skipped only if a bound shows that too few members fit ([freeCapacity]), or that the score
// cannot improve. Victims are found greedily and then reprieved unit by unit, so every evicted unit
// is needed. For members that are alike, other pods may be evicted instead, so that fewer pods
// leave. A smaller set may exist.
//
// All pods share the deciding goroutine, so an attempt ends at its [Bound]: about a tenth of a
// second to decide and as much to make room. If an attempt reaches the bound, the bound doubles for
// the next attempt, up to [MostDoublings] times. The bound is a count of work, not a time, so that
// a replay ends at the same point.
//
// # Where to read on
//
// Stories of package cycle (testdata) show each behaviour as events and actions: group_search.txt
// (orders and the search), group_topology.txt (domains), group_preemption.txt (victims, units,
// budgets), tree_preemption.txt (trees). Start with Attempt.Place, then Placer.place.
package gang
