// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Closing determines how long a move keeps its node closed to new pods. "" means that the move
// closes no node.
type Closing string

const (
	// Emptying keeps the taint on the emptied node.
	Emptying Closing = "Emptying"
	// MakingRoom removes the taint after the last move of the attempt.
	MakingRoom Closing = "MakingRoom"
)

// closures tracks the nodes that Berth's taint closes to new pods. closed holds exactly the nodes
// with that taint in the cluster. nodeChanges counts changes of nodes, which invalidate caches
// derived from nodes.
//
// Emptying two nodes in one plan requires closing both: otherwise the pods of the first land on the
// second, which is emptied next, and move again.
//
// A cordon would not do, because it could be confused with a user's cordon.
type closures struct {
	w           *world
	closed      map[int32]bool // by index
	nodeChanges int
}

// closeNode adds Berth's taint to a node, which must be open.
func (cl *closures) closeNode(n *cluster.Node) {
	object := cl.w.nodeObject(n).DeepCopy()
	object.Spec.Taints = append(object.Spec.Taints, v1.Taint{Key: EmptyingTaint, Effect: v1.TaintEffectNoSchedule})
	cl.replaceNode(object)
}

// openNode removes Berth's taint from a node, and leaves its other taints.
func (cl *closures) openNode(n *cluster.Node) {
	object := cl.w.nodeObject(n).DeepCopy()
	object.Spec.Taints = slices.DeleteFunc(object.Spec.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
	cl.replaceNode(object)
}

// replaceNode replaces a node by a copy with other taints, which may change the domains of spread
// constraints.
func (cl *closures) replaceNode(object *v1.Node) {
	follow := func() {
		cl.noteNode(cl.w.c.Node(object.Name))
		for _, g := range cl.w.gauges {
			if l, ok := g.(*ledger); ok {
				l.recountTaints()
			}
		}
	}
	cl.w.Note(follow) // runs after an undo has restored the node
	cl.w.Put(object)
	follow()
}

// noteNode records in closed whether the cluster's node is closed.
func (cl *closures) noteNode(n *cluster.Node) {
	cl.nodeChanges++
	if isClosed(n) {
		cl.closed[n.Index] = true
	} else {
		delete(cl.closed, n.Index)
	}
}

// isClosed reports whether a node has Berth's taint, from this plan or an earlier one, whatever its
// value.
func isClosed(n *cluster.Node) bool {
	return slices.ContainsFunc(n.Taints.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
}

// closedNodes returns the sorted names of all closed nodes, including those closed before the plan.
func (cl *closures) closedNodes() (names []string) {
	for index := range cl.closed {
		names = append(names, cl.w.c.Nodes[index].Name)
	}
	slices.Sort(names)
	return names
}

// controlPlane reports whether a node belongs to the control plane: such a node must not be
// emptied, and counts as used even without any movable pod. The label is kubeadm's; its value does
// not matter.
func controlPlane(n *cluster.Node) bool {
	_, is := n.Lookup("node-role.kubernetes.io/control-plane")
	return is
}
