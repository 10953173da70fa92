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

// closeNode keeps new pods off a node; openNode undoes that.
func (w *world) closeNode(n *cluster.Node) {
	object := w.nodes[n.Name].DeepCopy()
	object.Spec.Taints = append(object.Spec.Taints, v1.Taint{Key: EmptyingTaint, Effect: v1.TaintEffectNoSchedule})
	w.replaceNode(object)
}

func (w *world) openNode(n *cluster.Node) {
	object := w.nodes[n.Name].DeepCopy()
	object.Spec.Taints = slices.DeleteFunc(object.Spec.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
	w.replaceNode(object)
}

func (w *world) replaceNode(object *v1.Node) {
	w.nodes[object.Name] = object
	w.setNode(object)
	for _, g := range w.gauges {
		if l, ok := g.(*ledger); ok {
			l.recountTaints()
		}
	}
}

// setNode has the cluster know a node as it is now.
func (w *world) setNode(object *v1.Node) {
	w.nodeChanges++
	w.c.SetNode(object)
	if n := w.c.Node(object.Name); isClosed(n) {
		w.closed[n.Index] = true
	} else {
		delete(w.closed, n.Index)
	}
}

func isClosed(n *cluster.Node) bool {
	return slices.ContainsFunc(n.Taints.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
}

func (w *world) closedNodes() (names []string) {
	for _, n := range w.c.Nodes {
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
