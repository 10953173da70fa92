package manifest

import (
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
)

// Set is the content of manifests: the objects of each kind in the order of the input, with
// the API server's defaults filled in. It is plain data: whoever has it may append to its
// lists, but objects may be shared with other sets and are not changed in place, except by
// Expand.
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

	// JobGroups makes Expand turn each suitable Job into a gang, as the Job controller does
	// with the feature gate WorkloadWithJob. It has to be set before Expand.
	JobGroups bool

	// Whole is set if the set has all objects of a cluster: what is missing in it does not
	// exist. Manifests may leave out whole kinds, and say nothing of these.
	Whole bool

	// Ignored counts the objects of kinds that Berth does not use, by kind or kind.group.
	// Users are told, because a kind that is missing in an answer may be one that they
	// expected to matter.
	Ignored map[string]int
	// Elsewhere counts the pods that are bound to nodes that the input does not have, by node.
	Elsewhere map[string]int
	// Warnings are fields that were ignored because a newer API server wrote them, and
	// workloads that are too large to expand, one line each.
	Warnings []string

	// places[kind][i] is where the i-th object of the kind's list above stands in the input: the
	// order across kinds, and the lines to name in errors. Workloads and PodGroups that Expand adds
	// at the end of their lists have none.
	places map[string][]place
	files  []string
	// stdin is how messages refer to "-" in files; files are the paths that were read, by the
	// numbers that places have.
	stdin string
}

// place is where an object stands in the input. It is kept small, because a set may have a
// million.
type place struct {
	// file is an index of Set.files. line is the first line of the object in it, from 1.
	// order is its place among all objects of the input, which mergePods sorts by.
	file  int32
	line  int32
	order int32
	// lines of the fields that name another object; 0 where there is none.
	nodeName, priorityClass, runtimeClass int32
}
