// Package e2eagent has tests of the node agent as a user has it: `berth up` without simulated
// nodes, one or more `berth agent` on containerds of their own, and kubectl. They need root, and
// containerd (which they install by apt where it is missing); a machine that cannot run containers
// skips them and says why.
//
// The tests share one cluster. Most share one node, too; those that break a node have their own, by
// newNode.
package e2eagent
