package rebalance

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Closing is how long a node is closed to new pods. "" means that the move closes no node.
type Closing string

const (
	// Emptying means that the taint stays on the node when it is empty.
	Emptying Closing = "Emptying"
	// MakingRoom means that the taint is removed after the last move of the attempt.
	MakingRoom Closing = "MakingRoom"
)

// closures keep nodes closed to new pods, by Berth's own taint. A node is in closed exactly while
// the cluster knows it with that taint; nodeChanges tells those who remember something of nodes
// that it may be outdated.
//
// Emptying two nodes at once shows why nodes have to be closed: without it, the pods of the first
// land on the second, which is emptied next, and leave again.
//
// It is a taint, not a cordon, so that it can be told from what a person has cordoned.
type closures struct {
	w           *world
	closed      map[int32]bool // by index
	nodeChanges int
}

// closeNode keeps new pods off a node, which must be open.
func (cl *closures) closeNode(n *cluster.Node) {
	object := cl.w.nodeObject(n).DeepCopy()
	object.Spec.Taints = append(object.Spec.Taints, v1.Taint{Key: EmptyingTaint, Effect: v1.TaintEffectNoSchedule})
	cl.replaceNode(object)
}

// openNode removes Berth's taint from a node, and no other.
func (cl *closures) openNode(n *cluster.Node) {
	object := cl.w.nodeObject(n).DeepCopy()
	object.Spec.Taints = slices.DeleteFunc(object.Spec.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
	cl.replaceNode(object)
}

// replaceNode has the world know a node with other taints, which may change the domains of spread
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
	cl.w.Note(follow) // once the node is as before
	cl.w.Put(object)
	follow()
}

// noteNode notes whether a node is closed, once the cluster knows it.
func (cl *closures) noteNode(n *cluster.Node) {
	cl.nodeChanges++
	if isClosed(n) {
		cl.closed[n.Index] = true
	} else {
		delete(cl.closed, n.Index)
	}
}

// isClosed reports whether a node has Berth's taint, by this plan or from before, whatever its
// value.
func isClosed(n *cluster.Node) bool {
	return slices.ContainsFunc(n.Taints.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
}

// closedNodes returns the names of all closed nodes, sorted; those that were closed before the plan
// are among them.
func (cl *closures) closedNodes() (names []string) {
	for index := range cl.closed {
		names = append(names, cl.w.c.Nodes[index].Name)
	}
	slices.Sort(names)
	return names
}

// controlPlane reports whether a node is one of the control plane: nobody wants it emptied, and it
// is in use without any pod that could run elsewhere. The label is kubeadm's; its value does not
// matter.
func controlPlane(n *cluster.Node) bool {
	_, is := n.Lookup("node-role.kubernetes.io/control-plane")
	return is
}
