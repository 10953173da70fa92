// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"

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

// InNamespace lists the pods of a namespace by name, ended ones included.
func (w *World) InNamespace(namespace string) (list []Found) {
	return slices.DeleteFunc(w.Each(), func(f Found) bool { return f.Object.Namespace != namespace })
}

// CountPods returns the number of pods, ended ones included.
func (w *World) CountPods() int { return len(w.pods.named) }
