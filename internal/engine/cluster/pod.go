package cluster

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is a pod, pending or placed.
type Pod struct {
	Class *PodClass
	Name  string
	UID   types.UID

	// Node is the node that the pod is placed on; nil while it is pending, and while its node is
	// not known.
	Node *Node
	// NodeName is the name of that node, set also while the node is not known.
	NodeName string
	// Nominated is the name of the node that the pod is nominated to.
	Nominated string

	Generation       int64 // of the spec, as last seen
	Created, Started Time  // Started is zero while no kubelet has seen the pod
	Terminating      bool  // deletion is under way
	Preempted        bool  // deletion is under way, because the scheduler preempted the pod

	place int32 // index in Node.Pods

	// Devices are those of its node that a plugin gave the pod, where only a sum is requested; nil
	// if none did. It is set before the pod is placed, and does not change.
	Devices *DeviceShares
}

// DeviceShares are amounts of single devices of a node, each device by its number there.
type DeviceShares []DeviceShare

// DeviceShare is an amount of one device.
type DeviceShare struct {
	Device int32
	Amount int64
}

// Namespace returns the pod's namespace.
func (p *Pod) Namespace() string { return p.Class.Namespace }

// Spec returns what the specs of all pods of the class have in common.
func (p *Pod) Spec() *Spec { return p.Class.Spec }

// Object reconstructs what decisions need of the pod as an API object, for libraries that expect
// one. It shares its contents with the class: do not change them.
func (p *Pod) Object() *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Class.Namespace, Name: p.Name, UID: p.UID, Labels: p.Class.Labels.Map(),
			CreationTimestamp: metav1.NewTime(p.Created.Time()),
		},
		Spec: p.Class.Spec.Object(),
	}

	if p.Class.Controller != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*p.Class.Controller}
	}
	if p.Class.Status != nil {
		pod.Status = *p.Class.Status
	}

	pod.Spec.NodeName = p.NodeName
	pod.Status.NominatedNodeName = p.Nominated
	if !p.Started.IsZero() {
		started := metav1.NewTime(p.Started.Time())
		pod.Status.StartTime = &started
	}

	if p.Terminating {
		now := metav1.Time{}
		pod.DeletionTimestamp = &now
	}
	return pod
}

// isPreempted reports whether the pod is being deleted because the scheduler preempted it.
func isPreempted(pod *v1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == v1.DisruptionTarget {
			return c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonPreemptionByScheduler
		}
	}
	return false
}
