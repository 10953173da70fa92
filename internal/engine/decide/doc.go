// Package decide finds the node for a pod: the best of all nodes, not of a sample.
//
// There are two ways to the same answer. [Plain] asks every plugin about every node, without a
// cache, and is written to be read. It is the reference in tests, and what `berth explain` prints.
// [Decider] is the fast way. It looks at groups of nodes that can differ only in free room, and
// hands over to its own Plain what groups cannot express. What either decides is a [Decision].
//
// Whatever the Decider decides is one of the plain evaluator's best nodes, each of these is
// equally likely, and total, feasible count and reasons are the same. Where a pod needs what
// groups cannot express (volumes, devices, out-of-tree plugins), its filters are asked about the
// nodes that all else leaves, or the plain way decides.
//
// # How a decision works
//
//	                 follow the log (index)
//	                          |
//	     a ranking? ----------+---------- no ranking, pod not nominated
//	          |                               |
//	plan, catch up (cache, ranking)     one node by name? judge it alone (target.go)
//	nominated node still good? take it        |
//	withhold nodes without room        plan from a skeleton, find its base (cache, planner)
//	  beside nominated pods            count the pods that the class selects (survey)
//	best group, highest bucket         best cell of the trees (search)
//	          |                               |
//	          +------------- Decision --------+
//
// # Layers
//
// A layer refers only to those above it in this list; rank and base never refer to each other.
//
//   - effort (a package): [effort.Limits] are all constants that trade work against memory,
//     [effort.Meter] counts work, [effort.Budget] bounds one attempt.
//   - plain (plain, judges, evaluation, extend, failure, parallel): every plugin, every node. No
//     state.
//   - index (index, topology, labelkeys, terms, saying, placed, namedkeys, versions, budgetnews,
//     looks): what all plans share of the cluster. It follows the log; it is current before
//     anything below it is read.
//   - plan (planner, plan, skeleton, plantallies, room, counted, questions): the answers of all
//     plugins for one class, by what they depend on: fixed, pods on the node, domains, API
//     objects.
//   - compare (sheet, tally, static, tie): groups of nodes, how many pods their domains have,
//     verdicts and totals. What rank and base share.
//   - rank (ranking, groups, noderoom, counting, build, follow, summit, choose, guests, left,
//     hypothesis): all nodes for one class.
//   - base (base, inclusion, tree, box, sums, survey, apart, search): all nodes for all classes of
//     a skeleton.
//   - preempt (preempt, victims, candidates, askedcandidates): whose pods are the cheapest to
//     remove.
//   - decide (cache, tidy, earn, planned, rankings, decider, target, among, decide, nonode, ties):
//     which way a pod goes, and what is kept.
//
// # What is exact, what is bounded, what it costs
//
//   - A ranking costs two bytes a node while it has one group, and some bytes more with several.
//     It replays every placement, so few classes have one: those whose surveys have cost as much
//     (earn.go).
//   - A base costs about 16 bytes a node and log n a change, for any number of classes. A class
//     that was never seen before costs the pods that it selects, not a look at every node.
//   - Boxes of a tree may be larger than what is in them, never smaller: that costs time and no
//     answer.
//   - A tally costs 8 bytes a domain. Up to Limits.FewDomains domains, nodes are grouped by
//     domain, and a count that changes moves no node. With more, they are grouped by count, and it
//     moves the nodes of one domain.
//   - An attempt stops when its Budget is spent, with an error that says so. Everything else is
//     exact.
//
// # What must stay true
//
//   - Randomness is output. [Decider] draws from one tie; recordings and stories pin each draw and
//     their order, so even when a class gets a ranking is part of what a replay repeats.
//   - Work is behaviour: attempts of groups of pods end by it. It must not depend on the order of
//     a map.
//   - Lists that a doc comment calls valid until the next call are scratch space of the type that
//     returns them.
//   - Hot functions stay small enough to be inlined: summit.numberChanged, pointOf,
//     ranking.roomOf, box.fits, tally.value, ranking.groupAt, room.fits. `go build -gcflags=-m`
//     tells.
package decide
