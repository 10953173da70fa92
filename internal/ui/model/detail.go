// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// NodeDetail holds all information shown about one node. It is computed on request, and not kept.
type NodeDetail struct {
	Node
	Created    int64             `json:"created"`
	Labels     map[string]string `json:"labels"`
	TaintList  []Taint           `json:"taintList"`
	Conditions []Condition       `json:"conditions"`
	Resources  []Resource        `json:"resources"`
	System     System            `json:"system"`
	PodList    []OnNode          `json:"podList"`
}

// Taint is one taint of a node, with its time if known.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
	Since  int64  `json:"since"`
}

// Condition is one condition of a node. Since is the time of its last change of status.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Since   int64  `json:"since"`
	Good    bool   `json:"good"`
}

// Resource holds the requested and the total amount of a resource in readable form. The share is
// relative to allocatable: 1 is the whole amount, and requests may exceed it.
type Resource struct {
	Name        string  `json:"name"`
	Requested   string  `json:"requested"`
	Overhead    string  `json:"overhead"` // pod overhead included in the requests; empty if there is none
	Allocatable string  `json:"allocatable"`
	Capacity    string  `json:"capacity"`
	Share       float64 `json:"share"`
	OverShare   float64 `json:"overShare"`
}

// System describes the machine. The fields are copied from the node's status, as reported by its
// kubelet.
type System struct {
	Kubelet string `json:"kubelet"`
	OS      string `json:"os"`
	Kernel  string `json:"kernel"`
	Runtime string `json:"runtime"`
	Arch    string `json:"arch"`
}

// OnNode is a pod of a node. Status resembles that of kubectl get.
type OnNode struct {
	UID            string `json:"uid"`
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	Node           string `json:"node,omitempty"` // set in lists that cover several nodes
	Status         string `json:"status"`
	Owner          string `json:"owner"`
	Priority       int32  `json:"priority"`
	Created        int64  `json:"created"`
	CPU            int64  `json:"cpu"`
	Memory         int64  `json:"memory"`
	OverheadCPU    int64  `json:"overheadCPU"`
	OverheadMemory int64  `json:"overheadMemory"`
	Due            int64  `json:"due"` // 0: the pod may stay
	Taint          string `json:"taint"`
	Going          bool   `json:"going"`
}

// Node returns the details of a node, and false for an unknown one. The labels belong to the model
// and must not be changed.
func (c *Cluster) Node(name string) (*NodeDetail, bool) {
	n := c.nodes[name]
	if n == nil || n.info == nil {
		return nil, false
	}

	d := &NodeDetail{
		Node: n.nodeRow(), Created: n.info.created, Labels: n.info.labels, TaintList: []Taint{},
		Conditions: []Condition{}, PodList: []OnNode{},
		System: System{
			Kubelet: n.info.system.KubeletVersion, OS: n.info.system.OSImage, Kernel: n.info.system.KernelVersion,
			Runtime: n.info.system.ContainerRuntimeVersion, Arch: n.info.system.Architecture,
		},
	}

	for i := range n.info.taints {
		t := &n.info.taints[i]
		taint := Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)}
		// NoSchedule taints often lack a time.
		if t.TimeAdded != nil {
			taint.Since = t.TimeAdded.UnixMilli()
		}
		d.TaintList = append(d.TaintList, taint)
	}

	for i := range n.info.conditions {
		x := &n.info.conditions[i]
		d.Conditions = append(d.Conditions, Condition{
			Type: string(x.Type), Status: string(x.Status), Reason: x.Reason, Message: x.Message, Since: x.LastTransitionTime.UnixMilli(),
			// Ready should be true, and any other condition false; unknown is never good.
			Good: (x.Type == v1.NodeReady) == (x.Status == v1.ConditionTrue) && x.Status != v1.ConditionUnknown,
		})
	}

	d.Resources = n.resourceRows()
	for _, p := range n.pods {
		d.PodList = append(d.PodList, c.onNode(p))
	}

	slices.SortFunc(d.PodList, OnNode.compare)
	return d, true
}

// compare orders by namespace and name.
func (p OnNode) compare(o OnNode) int {
	return cmp.Or(cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Name, o.Name))
}

// onNode returns the row of a pod in a list.
func (c *Cluster) onNode(p *Pod) OnNode {
	row := OnNode{
		UID: string(p.uid()), Namespace: p.eviction.Name.Namespace, Name: p.eviction.Name.Name, Status: p.status, Owner: p.owner,
		Priority: p.priority, Created: p.created, CPU: p.cpu, Memory: p.memory, OverheadCPU: p.overheadCPU,
		OverheadMemory: p.overheadMemory,
	}
	if leaving, leaves := c.leavingRow(p); leaves {
		row.Due, row.Taint, row.Going = leaving.Due, leaving.Taint, leaving.Going
	}
	return row
}

// resourceRows returns the rows of CPU, memory and pods, and then the node's remaining resources,
// sorted by name. It skips a resource requested by pods but not reported by the node.
func (n *node) resourceRows() []Resource {
	var overheadCPU, overheadMemory int64
	// Add up quantities, so that the sums keep the format of the manifests.
	others := map[v1.ResourceName]resource.Quantity{}
	for _, p := range n.pods {
		if !p.takesRoom() {
			continue
		}
		overheadCPU += p.overheadCPU
		overheadMemory += p.overheadMemory
		for name, quantity := range p.others {
			sum := others[name]
			sum.Add(quantity)
			others[name] = sum
		}
	}

	list := []Resource{
		n.resourceRow(v1.ResourceCPU, *resource.NewMilliQuantity(n.cpu, resource.DecimalSI),
			*resource.NewMilliQuantity(overheadCPU, resource.DecimalSI)),
		n.resourceRow(v1.ResourceMemory, *resource.NewQuantity(n.memory, resource.BinarySI),
			*resource.NewQuantity(overheadMemory, resource.BinarySI)),
		n.resourceRow(v1.ResourcePods, *resource.NewQuantity(n.count, resource.DecimalSI), resource.Quantity{}),
	}

	for _, name := range sortedNames(n.info.allocatable) {
		if !basic[name] {
			list = append(list, n.resourceRow(name, others[name], resource.Quantity{}))
		}
	}
	return list
}

// resourceRow returns the row of one resource. Without allocatable the shares are 0.
func (n *node) resourceRow(name v1.ResourceName, requested, overhead resource.Quantity) Resource {
	allocatable, capacity := n.info.allocatable[name], n.info.capacity[name]
	r := Resource{Name: string(name), Requested: requested.String(), Allocatable: allocatable.String(), Capacity: capacity.String()}
	if !overhead.IsZero() {
		r.Overhead = overhead.String()
	}
	if all := allocatable.AsApproximateFloat64(); all > 0 {
		r.Share, r.OverShare = requested.AsApproximateFloat64()/all, overhead.AsApproximateFloat64()/all
	}
	return r
}
