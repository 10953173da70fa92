// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"reflect"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Set is the content of manifests: the objects of each kind in the order of the input, with the API
// server's defaults filled in. It is plain data: callers may append to its lists, but objects may
// be shared with other sets and must not be changed in place, except by Expand.
type Set struct {
	Nodes                  []*v1.Node
	Pods                   []*v1.Pod
	Namespaces             []*v1.Namespace
	Services               []*v1.Service
	PersistentVolumes      []*v1.PersistentVolume
	PersistentVolumeClaims []*v1.PersistentVolumeClaim
	ResourceQuotas         []*v1.ResourceQuota
	LimitRanges            []*v1.LimitRange
	PriorityClasses        []*schedulingv1.PriorityClass
	RuntimeClasses         []*nodev1.RuntimeClass
	PodDisruptionBudgets   []*policyv1.PodDisruptionBudget
	StorageClasses         []*storagev1.StorageClass
	CSINodes               []*storagev1.CSINode
	CSIDrivers             []*storagev1.CSIDriver
	CSIStorageCapacities   []*storagev1.CSIStorageCapacity
	VolumeAttachments      []*storagev1.VolumeAttachment
	ResourceSlices         []*resourcev1.ResourceSlice
	ResourceClaims         []*resourcev1.ResourceClaim
	ResourceClaimTemplates []*resourcev1.ResourceClaimTemplate
	DeviceClasses          []*resourcev1.DeviceClass
	DeviceTaintRules       []*resourcev1.DeviceTaintRule
	Leases                 []*coordinationv1.Lease
	Workloads              []*schedulingv1beta1.Workload
	PodGroups              []*schedulingv1beta1.PodGroup
	CompositePodGroups     []*schedulingv1alpha3.CompositePodGroup

	Deployments            []*appsv1.Deployment
	ReplicaSets            []*appsv1.ReplicaSet
	StatefulSets           []*appsv1.StatefulSet
	DaemonSets             []*appsv1.DaemonSet
	Jobs                   []*batchv1.Job
	ReplicationControllers []*v1.ReplicationController

	// JobGroups makes Expand turn each suitable Job into a gang, like the Job controller with the
	// feature gate WorkloadWithJob. Set it before Expand.
	JobGroups bool

	// Whole is set if the set has all objects of a cluster, so that objects missing from it do not
	// exist. Otherwise whole kinds may be missing from the manifests, and their objects are
	// unknown.
	Whole bool

	// NodePools holds Karpenter's NodePools, for plans of nodes.
	NodePools []Document
	// Ignored counts the objects of kinds unused by Berth, by kind or kind.group. It is shown to
	// users, who may have expected these objects to matter.
	Ignored map[string]int
	// Elsewhere counts the pods bound to nodes missing from the input, by node.
	Elsewhere map[string]int
	// Warnings holds ignored fields of a newer API server, and workloads too large to expand, one
	// line each.
	Warnings []string

	// places[kind][i] is the place in the input of the i-th object of the kind's list above. Places
	// give the order across kinds, and the lines for errors. Workloads and PodGroups appended to
	// their lists by Expand lack a place.
	places map[string][]place
	files  []string
	// stdin is the name for "-" in messages; files holds the paths read, indexed by place.file.
	stdin string
}

// NodePoolKind is the kind of NodePools in Ignored.
const NodePoolKind = "NodePool.karpenter.sh"

// Document is an object of a kind unused by this package, as JSON, with its place in the input.
type Document struct {
	File string
	Line int
	Text []byte
}

// place is the position of an object in the input. It is small, because a set may have a million
// places.
type place struct {
	// file is an index of Set.files. line is the first line of the object in it, from 1. order is
	// its position among all objects of the input, the sort key of mergePods.
	file  int32
	line  int32
	order int32
	// Lines of the fields that reference another object; 0 if absent.
	nodeName, priorityClass, runtimeClass int32
}

// Assemble makes a set from objects of an API server. It neither checks objects nor sets defaults,
// because the server has done both. It counts objects of kinds unused by Berth. from names the
// source in messages. The set takes ownership of the objects, and keeps the input's order.
func Assemble(from string, objects []metav1.Object) *Set {
	s := &Set{Ignored: map[string]int{}, places: map[string][]place{}, files: []string{from}}
	for i, object := range objects {
		// Objects decoded by client-go often lack their kind, so use their Go type.
		t := reflect.TypeOf(object).Elem()
		k := byType[t]
		if k == nil {
			s.Ignored[t.Name()]++
			continue
		}
		k.add(s, object)
		s.places[k.name] = append(s.places[k.name], place{order: int32(i)})
	}
	return s
}

// Objects returns all objects of the set, kind by kind in the order of Kinds. The caller owns the
// slice, but not the objects.
func (s *Set) Objects() (all []metav1.Object) {
	for _, k := range ordered {
		all = append(all, k.list(s)...)
	}
	return all
}

// OfKind lists the objects of a kind.
func (s *Set) OfKind(kind string) []metav1.Object { return kinds[kind].list(s) }

// Controllers lists the objects of pod-creating controllers.
func (s *Set) Controllers() (all []metav1.Object) {
	for _, name := range []string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"} {
		all = append(all, s.OfKind(name)...)
	}
	return all
}

// Newest returns the latest time in nodes and pods, or zero without any. It is close to the time at
// which the set was written. Newest trusts all clocks; package simulate detects clocks running
// ahead.
func (s *Set) Newest() (newest time.Time) {
	later := func(t metav1.Time) {
		if t.After(newest) {
			newest = t.Time
		}
	}

	for _, n := range s.Nodes {
		// Creation times are written by the API server, the other times by components.
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

// conditionTime returns the time of the pod's latest condition change, or zero.
func conditionTime(p *v1.Pod) (newest metav1.Time) {
	for i := range p.Status.Conditions {
		if t := p.Status.Conditions[i].LastTransitionTime; t.After(newest.Time) {
			newest = t
		}
	}
	return newest
}

// PodAt returns the place in the input of the i-th pod of Pods, or of the workload that created it.
// After Expand, the index refers to the expanded list.
func (s *Set) PodAt(i int) (file string, line int) {
	at := s.places["Pod"][i]
	return s.fileName(at.file), int(at.line)
}
