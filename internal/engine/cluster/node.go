// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is a node with the pods on it, bound or assumed. The cluster changes nodes in place: use
// Copy for a snapshot.
type Node struct {
	// Index is the node's index in Cluster.Nodes and Cluster.Rooms. It is unique while the node
	// exists, and is reused afterwards.
	Index int32
	Name  string

	Parts
	Hostname Hostname

	// Pods are the placed pods, in no particular order. Each holds its index in the list
	// (Pod.place).
	Pods []*Pod
	// Requested is the sum of the requests of Pods. The node's Room repeats CPU and memory.
	Requested Resources
	// Held is the amount of each device held by Pods, indexed by device. Devices beyond its length
	// are free.
	Held []int64
	// Affine is the number of pods with pod affinity or anti-affinity of any kind, and AntiAffine
	// the number of pods with required anti-affinity.
	Affine, AntiAffine int32

	// Nominated are the pending pods nominated to this node. They are neither in Pods nor in
	// Requested.
	Nominated []*Pod

	here, left *Whereabouts // here is shared by most Pods, left by most pods that left the node; left is nil until a pod leaves
}

// Parts are shared by equal nodes: nodes of a cluster with the same labels point to the same
// LabelSet, and so on. The data behind the pointers is immutable, so comparing pointers shows the
// parts that two nodes, or two states of a node, have in common. In a node no part is nil.
type Parts struct {
	Labels   *LabelSet
	Taints   *TaintSet
	Images   *ImageSet
	Features *FeatureSet
	Size     *Size
}

// Hostname is the label kubernetes.io/hostname. It is not part of LabelSets, because it differs on
// every node.
type Hostname struct {
	Value string
	Known bool // the node has the label
}

// Room is the part of a node that changes with every placement, and the limits to compare it with.
// It fills one cache line, so checking a node's free room costs one memory access. Requests other
// than CPU, memory and a pod slot are compared with Node.Requested and Size.
type Room struct {
	CPU, Memory               int64 // allocatable
	RequestedCPU              int64
	RequestedMemory           int64
	NonZeroCPU, NonZeroMemory int64 // requested, with defaults for containers without requests
	Pods, MaxPods             int32
	// PerCPU and PerMemory are 1/CPU and 1/Memory, rounded, because multiplication is much cheaper
	// than division. They are infinite if the node lacks the resource.
	PerCPU, PerMemory float32
}

// LabelSet is a set of labels shared by nodes, without the host name.
type LabelSet struct {
	ID  int32
	Map map[string]string
}

// TaintSet is a set of taints, plus the cordon state, shared by nodes. It omits the time of adding
// a taint, which matters only to evictions and would make every set unique.
type TaintSet struct {
	ID            int32
	Taints        []v1.Taint // without timeAdded
	Unschedulable bool
	SparesPods    bool // podPreemptionPolicy disables preemption for resizes of the node's pods
}

// ImageSet is a set of images shared by nodes.
type ImageSet struct{ Images []v1.ContainerImage }

// FeatureSet is a set of declared features shared by nodes.
type FeatureSet struct{ Names []string }

// Size holds allocatable resources, and is shared by the nodes that have them. If the allocatable
// resources of a node change, the node gets another Size.
type Size struct {
	Resources
	List v1.ResourceList
}

// Lookup returns a label's value and whether the node has it.
func (n *Node) Lookup(key string) (string, bool) {
	if key == v1.LabelHostname {
		return n.Hostname.Value, n.Hostname.Known
	}
	value, ok := n.Labels.Map[key]
	return value, ok
}

// Get, with Has, implements labels.Labels, so that label selectors can be matched against a node.
func (n *Node) Get(key string) string { value, _ := n.Lookup(key); return value }

// Has reports whether the node has the label.
func (n *Node) Has(key string) bool { _, ok := n.Lookup(key); return ok }

// AllLabels returns all labels, including the host name. The map is new on each call.
func (n *Node) AllLabels() map[string]string {
	all := make(map[string]string, len(n.Labels.Map)+1)
	maps.Copy(all, n.Labels.Map)
	if n.Hostname.Known {
		all[v1.LabelHostname] = n.Hostname.Value
	}
	return all
}

// Object reconstructs the parts of the node relevant to decisions as an API object, for libraries
// that expect one. The result shares its contents with the cluster and must not be modified.
func (n *Node) Object() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.AllLabels()},
		Spec:       v1.NodeSpec{Taints: n.Taints.Taints, Unschedulable: n.Taints.Unschedulable},
		Status:     v1.NodeStatus{Allocatable: n.Size.List, Images: n.Images.Images, DeclaredFeatures: n.Features.Names},
	}
}

// Copy returns a copy of the node for experiments: pods can be added to it and taken from it
// without changing the cluster. Affine and AntiAffine keep the values of the original node. The
// copy is in no cluster and lacks a Room. into is reused if it is not nil.
func (n *Node) Copy(into *Node) *Node {
	if into == nil {
		into = &Node{}
	}
	pods := append(into.Pods[:0], n.Pods...)
	*into = *n
	into.Pods, into.Requested.Scalars, into.Held = pods, maps.Clone(n.Requested.Scalars), slices.Clone(n.Held)
	return into
}

// Add counts a pod on a copy. It does not check whether the pod fits.
func (n *Node) Add(p *Pod) {
	n.Pods = append(n.Pods, p)
	n.Requested.add(&p.Class.Requests)
	n.holdDevices(p, 1)
}

// holdDevices counts the devices held by a pod, or releases them.
func (n *Node) holdDevices(p *Pod, sign int64) {
	if p.Devices == nil {
		return
	}
	for _, share := range *p.Devices {
		for int(share.Device) >= len(n.Held) {
			n.Held = append(n.Held, 0)
		}
		n.Held[share.Device] += sign * share.Amount
	}
}

// Take removes a pod from a copy. It does nothing if the pod is not on the copy.
func (n *Node) Take(p *Pod) {
	if i := slices.Index(n.Pods, p); i >= 0 {
		last := len(n.Pods) - 1
		n.Pods[i] = n.Pods[last]
		n.Pods = n.Pods[:last]
		n.holdDevices(p, -1)
		if !n.Requested.subtractFrom(&p.Class.Requests) {
			n.addUp()
		}
	}
}

// addUp recomputes the sums over all pods, after a pod's request overflowed a sum and cannot be
// subtracted.
func (n *Node) addUp() {
	n.Requested = Resources{}
	for _, p := range n.Pods {
		n.Requested.add(&p.Class.Requests)
	}
}
