// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Pod is a pod, pending or placed. [NewPod] creates one: its Whereabouts are never nil.
type Pod struct {
	Class *PodClass
	*Whereabouts
	texts string // the name and the UID, in one allocation

	Generation       int64 // generation of the spec last observed
	Created, Started Time  // Started is zero while no kubelet has seen the pod
	Terminating      bool  // deletion is in progress
	Preempted        bool  // deletion is in progress, because the scheduler preempted the pod

	nameLength uint16 // the API allows 253 bytes
	place      int32  // index in Node.Pods
}

// Whereabouts hold the current or intended location of a pod. Nearly all pods of a node share one
// value, and so do all pods without a node. Never assign to a field, although it compiles; the
// setters replace the whole value.
type Whereabouts struct {
	// Node is the pod's node; nil while the pod is pending or its node is unknown.
	Node *Node
	// NodeName is the name of that node, set even while the node is unknown.
	NodeName string
	// Nominated is the name of the pod's nominated node.
	Nominated string
	// Devices are the node's devices assigned to the pod by a plugin, for requests that specify
	// only an amount; nil if no devices are assigned. They are set before the pod is placed, and do
	// not change.
	Devices *DeviceShares
}

var nowhere = &Whereabouts{}

// NewPod returns a pending pod.
func NewPod(class *PodClass, name string, uid types.UID) *Pod {
	return &Pod{Class: class, texts: name + string(uid), nameLength: uint16(len(name)), Whereabouts: nowhere}
}

// Name returns the pod's name.
func (p *Pod) Name() string { return p.texts[:p.nameLength] }

// UID returns the pod's UID.
func (p *Pod) UID() types.UID { return types.UID(p.texts[p.nameLength:]) }

// SetNodeName sets the node name of a pod that is not placed on a known node.
func (p *Pod) SetNodeName(name string) { p.setNode(nil, name) }

// SetDevices sets Devices.
func (p *Pod) SetDevices(shares *DeviceShares) {
	p.setWhereabouts(Whereabouts{p.Node, p.NodeName, p.Nominated, shares})
}

// leaveNode takes the pod off its node, and keeps the node's name. Most pods that left a node share
// their whereabouts as well.
func (p *Pod) leaveNode() {
	n := p.Node
	if p.Whereabouts != n.here {
		p.setNode(nil, n.Name)
		return
	}
	if n.left == nil {
		n.left = &Whereabouts{NodeName: n.Name}
	}
	p.Whereabouts = n.left
}

func (p *Pod) setNode(n *Node, name string) {
	p.setWhereabouts(Whereabouts{n, name, p.Nominated, p.Devices})
}

// setWhereabouts sets the pod's whereabouts. It uses the value shared by the pods of its node, or
// by pods without a node, if that is equal, and otherwise a new copy.
func (p *Pod) setWhereabouts(now Whereabouts) {
	switch {
	case now == *p.Whereabouts:
	case now == *nowhere:
		p.Whereabouts = nowhere
	case now.Node != nil && now == *now.Node.here:
		p.Whereabouts = now.Node.here
	default:
		p.Whereabouts = &Whereabouts{now.Node, now.NodeName, now.Nominated, now.Devices}
	}
}

// DeviceShares are amounts of individual devices of a node, with each device identified by its
// number on the node.
type DeviceShares []DeviceShare

// DeviceShare is an amount of one device.
type DeviceShare struct {
	Device int32
	Amount int64
}

// Namespace returns the pod's namespace.
func (p *Pod) Namespace() string { return p.Class.Namespace }

// Spec returns the spec shared by all pods of the class.
func (p *Pod) Spec() *Spec { return p.Class.Spec }

// Object reconstructs the parts of the pod relevant to decisions as an API object, for libraries
// that expect one. The result shares its contents with the class and must not be modified.
func (p *Pod) Object() *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Class.Namespace, Name: p.Name(), UID: p.UID(), Labels: p.Class.Labels.Map(),
			CreationTimestamp: metav1.NewTime(p.Created.Time()),
		},
		Spec: p.Class.Spec.Object(),
	}

	if p.Class.Controller != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*p.Class.Controller.Reference()}
	}
	if p.Class.Spec.Status != nil {
		pod.Status = *p.Class.Spec.Status
	}

	pod.Spec.NodeName = p.NodeName
	pod.Status.NominatedNodeName = p.Nominated
	if !p.Started.IsZero() {
		pod.Status.StartTime = new(metav1.NewTime(p.Started.Time()))
	}

	if p.Terminating {
		pod.DeletionTimestamp = &metav1.Time{}
	}
	return pod
}

// isPreempted reports whether the pod is being deleted because the scheduler preempted it.
func isPreempted(pod *v1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	c := rules.PodCondition(&pod.Status, v1.DisruptionTarget)
	return c != nil && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
}
