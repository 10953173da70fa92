package rebalance

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Closing is how long a node is closed to new pods.
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
type closures struct {
	w           *world
	closed      map[int32]bool // by index
	nodeChanges int
}

// closeNode keeps new pods off a node; openNode undoes that.
func (cl *closures) closeNode(n *cluster.Node) {
	object := cl.w.nodes[n.Name].DeepCopy()
	object.Spec.Taints = append(object.Spec.Taints, v1.Taint{Key: EmptyingTaint, Effect: v1.TaintEffectNoSchedule})
	cl.replaceNode(object)
}

func (cl *closures) openNode(n *cluster.Node) {
	object := cl.w.nodes[n.Name].DeepCopy()
	object.Spec.Taints = slices.DeleteFunc(object.Spec.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
	cl.replaceNode(object)
}

func (cl *closures) replaceNode(object *v1.Node) {
	cl.w.nodes[object.Name] = object
	cl.setNode(object)
	for _, g := range cl.w.gauges {
		if l, ok := g.(*ledger); ok {
			l.recountTaints()
		}
	}
}

// setNode has the cluster know a node as it is now.
func (cl *closures) setNode(object *v1.Node) {
	cl.nodeChanges++
	cl.w.c.SetNode(object)
	if n := cl.w.c.Node(object.Name); isClosed(n) {
		cl.closed[n.Index] = true
	} else {
		delete(cl.closed, n.Index)
	}
}

func isClosed(n *cluster.Node) bool {
	return slices.ContainsFunc(n.Taints.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
}

func (cl *closures) closedNodes() (names []string) {
	for _, n := range cl.w.c.Nodes {
		if n != nil && isClosed(n) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// controlPlane reports whether a node is one of the control plane: nobody wants it emptied, and it
// is in use without any pod that could run elsewhere.
func controlPlane(n *cluster.Node) bool {
	_, is := n.Lookup("node-role.kubernetes.io/control-plane")
	return is
}
