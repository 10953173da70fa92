// Package decide finds the node for a pod: the best of all nodes, not of a sample.
//
// There are two ways to the same answer. [Evaluate] is the plain one: every plugin, every node, no
// cache, written to be read. It is the reference of the tests and what `berth explain` prints.
// [Decider] is the fast one: it keeps, for every class of pods, the nodes in groups that cannot
// differ but in their free room, each group ranked by the scores for room, and brings that ranking
// up to date from the cluster's log; a decision then looks at groups, not at nodes. Whatever it
// decides is one of the plain evaluator's best; where a pod needs what groups cannot express
// (volumes, devices), the plain way decides.
//
// [Preempt] finds the node whose pods are the cheapest to remove for a pod that fits nowhere.
package decide
