// Package gang decides the pods of a pod group together: on which nodes as many of them as are
// needed fit, which pods would have to leave for that, or where room is to be kept until others
// end. It decides for package cycle, which turns what comes out into actions.
//
// In goes a [Request]: the cluster model, the group, its pending pods in their order and how many
// of them are needed at least, what the attempt may cost, and what earlier attempts left. Out come
// places ([Attempt.Place]), a [RoomPlan], or a [Verdict] that says why there are none. Nothing is
// written, reported or bound here. The same request on the same cluster with the same random source
// gives the same answer; the random source is the cycle's, and every draw is part of the output.
//
// # Layers
//
// Each type owns its fields and uses those below it only:
//
//	            cycle: queue, rescue plugins, reservations, Permit, actions
//	─────────────┬────────────────────────────────────────────▲────────────
//	             ▼ Request                                     │ Verdict
//	          Attempt      the order of the steps, for one group
//	             │
//	         RoomMaker     the cheapest domain; pods that end of themselves
//	             │
//	         clearance     victims, reprieve: for the members of a group, or for a tree
//	             │
//	          Domains      one domain of a topology key: bound, confine, score
//	             │
//	          Placer       passes in one order after the other; then a search
//	             │
//	         Tentative     members counted on nodes, and taken back  ──► Host
//	             │
//	           Bound       work, effort, memory of earlier attempts
//	             │
//	           Units       what leaves together, and who may not be a victim
//	─────────────┼──────────────────────────────────────────────────────────
//	             ▼
//	          decide: one pod, all nodes        cluster: the model
//
// Hypotheses are made on the cluster model itself, so that decisions see them: members that are
// placed, pods that are removed ([RemovedPods]), protected ([ProtectedPods]) or without their
// nominations. What makes one takes it back, in the same step, and whatever happens between: a
// panic ends in the cycle, which takes members off their nodes.
//
// # Trees
//
// Package cycle places the groups of a tree, each by an Attempt. For room, it hands the tree to
// [Attempt.PlanTree]: the clearance asks it to place its groups where pods have left, and where
// they may leave ([TreeRoom]) asks a RoomMaker for each group that does not fit.
//
// # What is exact, and what is bounded
//
// Where members are alike, one pass is exact: all take the same room, so no order places more.
// Where they differ, orders are tried, then placements are searched for, depth first; the search is
// exact unless it comes to its limit, which the verdict says. Domains are left out only where a
// bound shows that too few members fit ([vacancy]), or that the score cannot be better. Victims are
// found greedily and then reprieved one unit after the other, so that every unit that leaves is
// needed, but there may be another set that is smaller.
//
// All pods share the goroutine that decides, so an attempt ends at its [Bound]: about a tenth of a
// second to decide and as much to make room, twice that the next time, and so on. The bound is a
// count, not a time, and part of the output.
//
// # Where to read on
//
// Stories of package cycle (testdata) show each behaviour as events and actions: group_search.txt
// (orders and the search), group_topology.txt (domains), group_preemption.txt (victims, units,
// budgets), tree_preemption.txt (trees). Start with Attempt.Place, then Placer.place.
package gang
