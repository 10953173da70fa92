package manifest

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects returns all objects of the set, kind by kind.
func (s *Set) Objects() (all []metav1.Object) {
	all = appendObjects(appendObjects(appendObjects(all, s.Nodes), s.Pods), s.Namespaces)
	all = appendObjects(appendObjects(appendObjects(all, s.Services), s.PersistentVolumes), s.PersistentVolumeClaims)
	all = appendObjects(appendObjects(appendObjects(all, s.ResourceQuotas), s.LimitRanges), s.PriorityClasses)
	all = appendObjects(appendObjects(appendObjects(all, s.RuntimeClasses), s.PodDisruptionBudgets), s.StorageClasses)
	all = appendObjects(appendObjects(appendObjects(all, s.CSINodes), s.CSIDrivers), s.CSIStorageCapacities)
	all = appendObjects(appendObjects(appendObjects(all, s.VolumeAttachments), s.ResourceSlices), s.ResourceClaims)
	all = appendObjects(appendObjects(appendObjects(all, s.ResourceClaimTemplates), s.DeviceClasses), s.Leases)
	all = appendObjects(appendObjects(appendObjects(all, s.DeviceTaintRules), s.Workloads), s.PodGroups)
	all = appendObjects(all, s.CompositePodGroups)
	return append(all, s.Controllers()...)
}

// Controllers lists the objects of the controllers that make pods.
func (s *Set) Controllers() (all []metav1.Object) {
	all = appendObjects(appendObjects(appendObjects(all, s.Deployments), s.ReplicaSets), s.StatefulSets)
	return appendObjects(appendObjects(appendObjects(all, s.DaemonSets), s.Jobs), s.ReplicationControllers)
}

func appendObjects[T metav1.Object](all []metav1.Object, list []T) []metav1.Object {
	for _, object := range list {
		all = append(all, object)
	}
	return all
}

// Newest returns the latest time in nodes and pods, which is about when the set was written. It is
// zero if they have none.
func (s *Set) Newest() (newest time.Time) {
	later := func(t metav1.Time) {
		if t.After(newest) {
			newest = t.Time
		}
	}

	for _, n := range s.Nodes {
		later(n.CreationTimestamp)
		for i := range n.Status.Conditions {
			later(n.Status.Conditions[i].LastHeartbeatTime)
			later(n.Status.Conditions[i].LastTransitionTime)
		}
	}

	for _, p := range s.Pods {
		later(p.CreationTimestamp)
		later(conditionTime(p))
	}
	return newest
}

func conditionTime(p *v1.Pod) (newest metav1.Time) {
	for i := range p.Status.Conditions {
		if t := p.Status.Conditions[i].LastTransitionTime; t.After(newest.Time) {
			newest = t
		}
	}
	return newest
}
