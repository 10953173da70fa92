// Package decide finds the node for a pod: the best of all nodes, not of a sample.
//
// There are two ways to the same answer. [Evaluate] is the plain one: it asks every plugin about
// every node, without a cache, and is written to be read. It is the reference in tests, and what
// `berth explain` prints. [Decider] is the fast one: for every class of pods it keeps the nodes in
// groups that can differ only in free room, each group ordered by the scores for room, and brings
// them up to date from the cluster's log. A decision then looks at groups, not at nodes.
//
// Whatever the Decider decides is one of the plain evaluator's best nodes, and each of these is
// equally likely. Where a pod needs what groups cannot express (volumes, devices, out-of-tree
// plugins), its filters are asked about the nodes that all else leaves, or the plain way decides.
//
// [Preempt] finds the node whose pods are the cheapest to remove for a pod that fits nowhere.
package decide
