// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"

	v1 "k8s.io/api/core/v1"
)

// partTable holds the parts shared by nodes. Equal contents share one pointer while any node has
// them, and the data behind the pointer is immutable, so a result that depends only on a part is
// computed once for all nodes with this part.
type partTable struct {
	labels   interned[LabelSet]
	taints   interned[TaintSet]
	images   interned[ImageSet]
	features interned[FeatureSet]
	sizes    interned[Size]
}

func newPartTable() partTable {
	return partTable{
		labels: newInterned[LabelSet](), taints: newInterned[TaintSet](), images: newInterned[ImageSet](),
		features: newInterned[FeatureSet](), sizes: newInterned[Size](),
	}
}

// interned maps each digest to the value that represents all values with that digest. IDs are never
// reused.
type interned[T any] struct {
	values map[digest]*T
	next   int32
	kept   int // the number of values after the last cleanup
}

func newInterned[T any]() interned[T] { return interned[T]{values: map[digest]*T{}} }

// get returns the value for the key, and creates it if necessary by calling make with its ID.
func (t *interned[T]) get(key digest, make func(id int32) *T) *T {
	if value, ok := t.values[key]; ok {
		return value
	}
	value := make(t.next)
	t.next++
	t.values[key] = value
	return value
}

// dropUnused drops the parts not in use if they may be many: image lists, for instance, change all
// the time.
func (t *partTable) dropUnused(nodes map[string]*Node) {
	dropUnused(nodes, &t.labels, func(n *Node) *LabelSet { return n.Labels })
	dropUnused(nodes, &t.taints, func(n *Node) *TaintSet { return n.Taints })
	dropUnused(nodes, &t.images, func(n *Node) *ImageSet { return n.Images })
	dropUnused(nodes, &t.features, func(n *Node) *FeatureSet { return n.Features })
	dropUnused(nodes, &t.sizes, func(n *Node) *Size { return n.Size })
}

// dropUnused drops the values not used by any node, if a search for them is worthwhile. It scans
// all nodes; worthDropping makes such scans rare.
func dropUnused[T any](nodes map[string]*Node, t *interned[T], of func(*Node) *T) {
	if len(t.values) < worthDropping(t.kept) {
		return
	}
	used := make(map[*T]bool, len(t.values))
	for _, n := range nodes {
		used[of(n)] = true
	}
	maps.DeleteFunc(t.values, func(_ digest, value *T) bool { return !used[value] })
	t.kept = len(t.values)
}

// internParts returns the parts of a node.
func (t *partTable) internParts(object *v1.Node) Parts {
	return Parts{
		Labels: t.internLabels(object.Labels), Taints: t.internTaints(&object.Spec), Images: t.internImages(object.Status.Images),
		Features: t.internFeatures(object.Status.DeclaredFeatures), Size: t.internSize(object.Status.Allocatable),
	}
}

// internLabels returns the set of these labels without the host name, which would make every set
// unique.
func (t *partTable) internLabels(labels map[string]string) *LabelSet {
	if _, ok := labels[v1.LabelHostname]; ok {
		labels = maps.Clone(labels)
		delete(labels, v1.LabelHostname)
	}
	var h hasher
	h.stringMap(labels)
	return t.labels.get(h.sum(), func(id int32) *LabelSet { return &LabelSet{ID: id, Map: labels} })
}

// internTaints returns the set of the node's taints, in order, with its cordon state and its
// preemption policy.
func (t *partTable) internTaints(spec *v1.NodeSpec) *TaintSet {
	var h hasher
	spares := spec.PodPreemptionPolicy != nil && len(spec.PodPreemptionPolicy.DisableResizePreemption) > 0
	h.addBool(spec.Unschedulable)
	h.addBool(spares)
	for i := range spec.Taints {
		t := &spec.Taints[i]
		h.addString(t.Key)
		h.addString(t.Value)
		h.addString(string(t.Effect))
	}
	return t.taints.get(h.sum(), func(id int32) *TaintSet {
		s := &TaintSet{ID: id, Unschedulable: spec.Unschedulable, SparesPods: spares}
		for _, t := range spec.Taints {
			t.TimeAdded = nil
			s.Taints = append(s.Taints, t)
		}
		return s
	})
}

// internImages returns the set of these images, in order. By default a kubelet reports 50 of them
// (nodeStatusMaxImages).
func (t *partTable) internImages(list []v1.ContainerImage) *ImageSet {
	var h hasher
	for i := range list {
		h.addStrings(list[i].Names)
		h.addInt(list[i].SizeBytes)
	}
	return t.images.get(h.sum(), func(int32) *ImageSet { return &ImageSet{list} })
}

// internFeatures returns the set of these declared features, in order.
func (t *partTable) internFeatures(names []string) *FeatureSet {
	var h hasher
	h.addStrings(names)
	return t.features.get(h.sum(), func(int32) *FeatureSet { return &FeatureSet{names} })
}

// internSize returns the size with these amounts; 1 and 1000m CPU are one size.
func (t *partTable) internSize(list v1.ResourceList) *Size {
	var h hasher
	h.addResources(list)
	return t.sizes.get(h.sum(), func(int32) *Size { return &Size{NewResources(list), list} })
}
