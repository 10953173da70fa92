// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package decide finds the best node for a pod among all nodes, not among a sample.
//
// Two implementations reach the same result. [Plain] runs every plugin on every node, without a
// cache, and is written for readability. Tests use it as the reference, and `berth explain` prints
// its results. [Decider] is the fast implementation. It compares groups of nodes that differ only
// in free room, and delegates pods that it cannot decide in this way to its own Plain. Both return
// a [Decision].
//
// The Decider always chooses one of the plain evaluator's best nodes, each with equal probability,
// and reports the same total, feasible count and reasons. The nodes of a group may differ in the
// verdicts of filters for volumes and devices, and of out-of-tree filters. If such a filter applies
// to the pod, the Decider either runs this filter only on the nodes that pass all other filters, or
// delegates the pod to Plain.
//
// # How a decision works
//
//	                 follow the log (index)
//	                          |
//	     a ranking? ----------+---------- no ranking, pod not nominated
//	          |                               |
//	plan, catch up (cache, ranking)     one node by name? judge only that (decider.go)
//	nominated node still good? take it        |
//	withhold nodes without room        plan from a skeleton, find its base (cache, planner)
//	  next to nominated pods           count the pods selected by the class (survey)
//	best group, highest bucket         best cell of the trees (search)
//	          |                               |
//	          +------------- Decision --------+
//
// # Layers
//
// A layer refers only to layers above it in this list; rank and base never refer to each other.
//
//   - effort (a package): [effort.Limits] holds all constants that trade work against memory,
//     [effort.Meter] counts work, [effort.Budget] bounds one attempt.
//   - plain (plain, judges, evaluation, extend, failure, parallel): every plugin on every node,
//     without state.
//   - index (index, topology, labelkeys, terms, effectcache, placed, namedkeys, versions,
//     budgetchanges, looks): the view of the cluster shared by all plans. It follows the log and is
//     current before any layer below reads it.
//   - plan (planner, plan, skeleton, plantallies, room, counted, questions): the results of all
//     plugins for one class, by their dependencies: fixed, pods on the node, domains, API objects.
//   - compare (sheet, tally, static, tie): groups of nodes, pod counts of their domains, verdicts
//     and totals. Shared by rank and base.
//   - rank (ranking, groups, noderoom, counting, build, follow, maxtree, choose, guests, left,
//     hypothesis): all nodes for one class.
//   - base (base, inclusion, tree, box, sums, survey, apart, search): all nodes for all classes of
//     a skeleton.
//   - preempt (preempt, victims, candidates, askedcandidates): the cheapest victims.
//   - decide (cache, tidy, earn, recentplans, bases, rankings, decider, target, among, decide,
//     nonode, ties): the path of each pod, and the lifetime of cached data.
//
// # What is exact, what is bounded, what it costs
//
//   - A ranking takes two bytes per node while it has one group, and a few more with several
//     groups. It replays every placement, so a class usually gets a ranking only after its surveys
//     have cost as much as a ranking would (cache.go).
//   - A base takes about 16 bytes per node, and O(log n) time per change, for any number of
//     classes. The cost of a new class is proportional to the pods it selects; it never scans all
//     nodes.
//   - The box of a tree cell may be larger than its contents, never smaller. An oversized box costs
//     time but does not affect results.
//   - A tally costs 8 bytes per domain. Few domains, or domains with many nodes, are groups of
//     nodes, and a changed count moves no node. Otherwise nodes are grouped by count, and a changed
//     count moves the nodes of one domain.
//   - An attempt that exhausts its Budget fails with an [effort.TooLongError]. Everything else is
//     exact.
//
// # What must stay true
//
//   - Random draws are part of the output. [Decider] draws from a single tie, and recordings and
//     stories depend on each draw and on the order of the draws. In a replay, a class must
//     therefore get its ranking at the same decision.
//   - The counted work affects results: an attempt to place a pod group ends when its work exceeds
//     a limit. The amount of work must therefore not depend on the iteration order of a map.
//   - Lists documented as valid until the next call are scratch space of the type that returns
//     them.
//   - Hot functions remain inlinable: maxTree.numberChanged, pointOf, ranking.roomOf, box.fits,
//     tally.value, ranking.groupAt, room.fits. To check this, run `go build -gcflags=-m`.
package decide
