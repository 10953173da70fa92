package simulate

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// ChangeNode changes an existing node. alter receives a copy.
func (w *World) ChangeNode(name string, alter func(*v1.Node)) { w.nodes.changeNode(name, alter) }

// AddNode adds a node with the volume limits of csi, which may be nil.
func (w *World) AddNode(node *v1.Node, csi *storagev1.CSINode) {
	if csi != nil {
		w.scheduler.api.Put(csi)
	}
	w.nodes.applyNode(node)
}

// IsReady reports whether a node reports to be ready.
func IsReady(n *v1.Node) bool { return readyOf(n) == v1.ConditionTrue }
