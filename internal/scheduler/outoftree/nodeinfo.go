// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// nodeInfo is a node with its pods in the form for plugins. A snapshot's nodeInfos never change;
// plugins change copies (Snapshot). The sums (requested, ports, claims, ...) always match the pods:
// only AddPodInfo and RemovePod may change the pods or the sums.
type nodeInfo struct {
	node *v1.Node
	pods []fwk.PodInfo
	// The subsets of pods with pod affinity of any kind, and with required anti-affinity.
	affine, antiAffine []fwk.PodInfo

	requested, nonZero, allocatable resources // nonZero has defaults for CPU and memory
	ports                           fwk.HostPortInfo
	images                          map[string]*fwk.ImageStateSummary // by name; only images counted by the cluster
	claims                          map[string]int                    // number of pods by PersistentVolumeClaim
	features                        ndf.FeatureSet                    // declared by the kubelet in the node's status
	generation                      int64                             // new after each change; a clone keeps the original's until then
}

var _ fwk.NodeInfo = &nodeInfo{}

// NewNodeInfo returns a node with pods outside of any cluster, for tests of plugins. The pods need
// not have the node in their spec.
func NewNodeInfo(node *v1.Node, pods ...*v1.Pod) fwk.NodeInfo {
	n := emptyNodeInfo()
	n.SetNode(node)
	for _, pod := range pods {
		n.AddPodInfo(newPodInfo(pod))
	}
	return n
}

// emptyNodeInfo returns a node without object and pods, with all its maps made.
func emptyNodeInfo() *nodeInfo {
	return &nodeInfo{ports: fwk.HostPortInfo{}, images: map[string]*fwk.ImageStateSummary{}, claims: map[string]int{},
		generation: generations.Add(1)}
}

// generations never yields the same number twice. Plugins compare generations, like upstream, to
// check whether their cached results about a node are still valid.
var generations atomic.Int64

// Node and its siblings implement fwk.NodeInfo.
func (n *nodeInfo) Node() *v1.Node                                    { return n.node }
func (n *nodeInfo) GetPods() []fwk.PodInfo                            { return n.pods }
func (n *nodeInfo) GetPodsWithAffinity() []fwk.PodInfo                { return n.affine }
func (n *nodeInfo) GetPodsWithRequiredAntiAffinity() []fwk.PodInfo    { return n.antiAffine }
func (n *nodeInfo) GetUsedPorts() fwk.HostPortInfo                    { return n.ports }
func (n *nodeInfo) GetRequested() fwk.Resource                        { return &n.requested }
func (n *nodeInfo) GetNonZeroRequested() fwk.Resource                 { return &n.nonZero }
func (n *nodeInfo) GetAllocatable() fwk.Resource                      { return &n.allocatable }
func (n *nodeInfo) GetImageStates() map[string]*fwk.ImageStateSummary { return n.images }
func (n *nodeInfo) GetPVCRefCounts() map[string]int                   { return n.claims }
func (n *nodeInfo) GetGeneration() int64                              { return n.generation }
func (n *nodeInfo) GetNodeDeclaredFeatures() ndf.FeatureSet           { return n.features }

// GetPodsWithRequiredNonHostScopedAntiAffinity is empty, as in a kube-scheduler without the feature
// gate InterPodAffinityHostnameFastPath, which is alpha and off.
func (n *nodeInfo) GetPodsWithRequiredNonHostScopedAntiAffinity() []fwk.PodInfo { return nil }

// Snapshot returns a copy that can be changed.
func (n *nodeInfo) Snapshot() fwk.NodeInfo { return n.clone() }

// clone copies everything affected by changes. Pods, image summaries and the node's object are
// shared, because they never change.
func (n *nodeInfo) clone() *nodeInfo {
	c := *n
	c.pods, c.affine, c.antiAffine = slices.Clone(n.pods), slices.Clone(n.affine), slices.Clone(n.antiAffine)
	c.requested, c.nonZero, c.allocatable = n.requested.clone(), n.nonZero.clone(), n.allocatable.clone()
	c.ports = fwk.HostPortInfo{}
	for ip, ports := range n.ports {
		c.ports[ip] = maps.Clone(ports)
	}
	c.images, c.claims = maps.Clone(n.images), maps.Clone(n.claims)
	return &c
}

// String is for logs of plugins.
func (n *nodeInfo) String() string {
	names := rules.Mapped(n.pods, func(p fwk.PodInfo) string { return p.GetPod().Name })
	return fmt.Sprintf("node %s: pods %v, requested %+v, ports %v, allocatable %+v", n.node.GetName(), names,
		n.requested, n.ports, n.allocatable)
}

// SetNode sets the data from the node's object: allocatable resources and features. Pods stay.
func (n *nodeInfo) SetNode(node *v1.Node) {
	n.node = node
	n.allocatable = resources{cluster.NewResources(node.Status.Allocatable)}
	n.features = ndf.DefaultFramework.TryMap(node.Status.DeclaredFeatures)
	n.generation = generations.Add(1)
}

// AddPodInfo adds a pod to the node, whether or not it fits. The caller ensures that the node does
// not have the pod already.
func (n *nodeInfo) AddPodInfo(p fwk.PodInfo) {
	n.pods = append(n.pods, p)
	if hasAffinity(p.GetPod()) {
		n.affine = append(n.affine, p)
	}
	if hasRequiredAntiAffinity(p.GetPod()) {
		n.antiAffine = append(n.antiAffine, p)
	}
	n.countPod(p, 1)
}

// RemovePod removes the pod with this UID from the node, and returns an error if the node does not
// have the pod. It subtracts the amounts counted when the pod was added, even if the pod passed
// here is a newer version.
func (n *nodeInfo) RemovePod(_ klog.Logger, pod *v1.Pod) error {
	i := slices.IndexFunc(n.pods, func(p fwk.PodInfo) bool { return p.GetPod().UID == pod.UID })
	if i < 0 {
		return fmt.Errorf("no corresponding pod %s in pods of node %s", pod.Name, n.node.GetName())
	}
	p := n.pods[i]
	n.pods = slices.Delete(n.pods, i, i+1)
	same := func(o fwk.PodInfo) bool { return o.GetPod().UID == pod.UID }
	n.affine, n.antiAffine = slices.DeleteFunc(n.affine, same), slices.DeleteFunc(n.antiAffine, same)
	n.countPod(p, -1)
	return nil
}

// countPod adds the pod to the sums, or subtracts it if sign is -1.
func (n *nodeInfo) countPod(p fwk.PodInfo, sign int64) {
	takes := p.CalculateResource()
	n.requested.countRequests(takes.Resource, sign)
	n.nonZero.MilliCPU += sign * takes.Non0CPU
	n.nonZero.Memory += sign * takes.Non0Mem
	n.countPorts(p.GetPod(), sign > 0)
	n.countClaims(p.GetPod(), int(sign))
	n.generation = generations.Add(1)
}

// countPorts adds or removes the pod's host ports. They form a set without counts: if two pods have
// the same port, the port counts as free as soon as either pod is removed. Upstream has the same
// flaw; see samePods for the case where it would matter.
func (n *nodeInfo) countPorts(pod *v1.Pod, add bool) {
	for _, port := range rules.HostPorts(pod) {
		if add {
			n.ports.Add(port.HostIP, string(port.Protocol), port.HostPort)
		} else {
			n.ports.Remove(port.HostIP, string(port.Protocol), port.HostPort)
		}
	}
}

// countClaims counts the pods per PersistentVolumeClaim, keyed namespace/name like upstream.
func (n *nodeInfo) countClaims(pod *v1.Pod, sign int) {
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			key := pod.Namespace + "/" + claim.ClaimName
			if n.claims[key] += sign; n.claims[key] <= 0 {
				delete(n.claims, key)
			}
		}
	}
}

// setImages records the cluster's images present on the node.
func (n *nodeInfo) setImages(c *cluster.Cluster) {
	for i := range n.node.Status.Images {
		for _, name := range n.node.Status.Images[i].Names {
			if state := c.Image(name); state != nil {
				n.images[name] = &fwk.ImageStateSummary{Size: state.Size, NumNodes: state.Nodes}
			}
		}
	}
}

// resources holds amounts of resources in the form for plugins. CPU is in thousandths of a core,
// memory and storage in bytes. Scalars holds the extended resources and huge pages; nil means none.
type resources struct{ cluster.Resources }

var _ fwk.Resource = &resources{}

// GetMilliCPU and its siblings implement fwk.Resource.
func (r *resources) GetMilliCPU() int64                            { return r.MilliCPU }
func (r *resources) GetMemory() int64                              { return r.Memory }
func (r *resources) GetEphemeralStorage() int64                    { return r.EphemeralStorage }
func (r *resources) GetAllowedPodNumber() int                      { return int(r.Pods) }
func (r *resources) GetScalarResources() map[v1.ResourceName]int64 { return r.Scalars }

// SetMaxResource raises every amount to the amount in the list, if that is larger. Like upstream,
// it does not raise the number of pods.
func (r *resources) SetMaxResource(list v1.ResourceList) {
	other := cluster.NewResources(list)
	r.MilliCPU = max(r.MilliCPU, other.MilliCPU)
	r.Memory = max(r.Memory, other.Memory)
	r.EphemeralStorage = max(r.EphemeralStorage, other.EphemeralStorage)
	for name, amount := range other.Scalars {
		if r.Scalars == nil {
			r.Scalars = map[v1.ResourceName]int64{}
		}
		r.Scalars[name] = max(r.Scalars[name], amount)
	}
}

// clone copies the scalars as well, so that changing the copy does not change r.
func (r *resources) clone() resources {
	copied := *r
	copied.Scalars = maps.Clone(r.Scalars)
	return copied
}

// countRequests adds sign times a pod's requests; sign is 1 or -1. It does not count the number of
// pods.
func (r *resources) countRequests(o fwk.Resource, sign int64) {
	r.MilliCPU += sign * o.GetMilliCPU()
	r.Memory += sign * o.GetMemory()
	r.EphemeralStorage += sign * o.GetEphemeralStorage()
	for name, amount := range o.GetScalarResources() {
		if r.Scalars == nil {
			r.Scalars = map[v1.ResourceName]int64{}
		}
		r.Scalars[name] += sign * amount
	}
}
