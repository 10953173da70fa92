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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
)

// kind is one kind of object used by Berth. A new kind requires a list in Set and a call of
// registerKind.
type kind struct {
	// name and apiVersion are as in manifests. namespaced reports whether the objects are in
	// namespaces. typ is the Go type for decoding.
	name       string
	apiVersion string
	namespaced bool
	typ        reflect.Type
	// prepare sets defaults in the object, then validates it.
	prepare func(object metav1.Object) field.ErrorList
	// add appends the object to its list in a set, and list returns that list. The object must be
	// of the kind's type.
	add  func(set *Set, object metav1.Object)
	list func(set *Set) []metav1.Object
}

// kinds indexes all kinds by name, and byType indexes them by Go type. ordered lists them in the
// order of registration. They exclude kinds with the same name in another group, such as Knative's
// Service.
var (
	kinds   = map[string]*kind{}
	byType  = map[reflect.Type]*kind{}
	ordered []*kind
)

// Kinds returns all kinds used by Berth, in a fixed order. It excludes Secrets and anything that
// contains them, so that a recording of a cluster can be shared.
func Kinds() []schema.GroupVersionKind {
	return rules.Mapped(ordered, func(k *kind) schema.GroupVersionKind { return schema.FromAPIVersionAndKind(k.apiVersion, k.name) })
}

// object is a pointer to an API type. The constraint lets generic functions create such a type and
// use it as an object.
type object[T any] interface {
	*T
	metav1.Object
}

// registerKind adds a kind. list returns the set's list of its objects. If prepare is nil, only the
// metadata is checked. Only init may call it, because many goroutines read the kinds afterwards.
func registerKind[T any, P object[T]](name, apiVersion string, namespaced bool, list func(*Set) *[]*T, prepare func(*T) field.ErrorList) {
	// Without specific rules, check only the metadata.
	if prepare == nil {
		prepare = func(o *T) field.ErrorList { return validateMeta(P(o), namespaced) }
	}
	// The functions of a kind hide its Go type, so that callers need no reflection to handle
	// objects.
	k := &kind{
		name: name, apiVersion: apiVersion, namespaced: namespaced, typ: reflect.TypeFor[T](),
		prepare: func(o metav1.Object) field.ErrorList { return prepare((*T)(o.(P))) },
		add: func(s *Set, o metav1.Object) {
			all := list(s)
			*all = append(*all, (*T)(o.(P)))
		},
		list: func(s *Set) []metav1.Object {
			return rules.Mapped(*list(s), func(o *T) metav1.Object { return P(o) })
		},
	}
	kinds[name], byType[k.typ], ordered = k, k, append(ordered, k)
}

// validateMeta checks only the metadata. It is for kinds whose other fields only the API server
// validates.
func validateMeta(o metav1.Object, namespaced bool) field.ErrorList {
	return rules.ValidateMeta(&metav1.ObjectMeta{
		Name: o.GetName(), GenerateName: o.GetGenerateName(), Namespace: o.GetNamespace(), Labels: o.GetLabels(),
		OwnerReferences: o.GetOwnerReferences(),
	}, namespaced)
}

// init registers all kinds. Kinds and Objects use the same order.
func init() {
	// Each kind has one version read by Berth; findKind suggests that version for other versions.
	const apps, batch, storage, devices, groups, composites = "apps/v1", "batch/v1", "storage.k8s.io/v1", "resource.k8s.io/v1",
		"scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3"
	registerKind("Node", "v1", false, func(s *Set) *[]*v1.Node { return &s.Nodes }, prepareNode)
	registerKind("Pod", "v1", true, func(s *Set) *[]*v1.Pod { return &s.Pods }, preparePod)
	registerKind("Namespace", "v1", false, func(s *Set) *[]*v1.Namespace { return &s.Namespaces }, prepareNamespace)
	registerKind("Service", "v1", true, func(s *Set) *[]*v1.Service { return &s.Services }, nil)
	registerKind("PersistentVolume", "v1", false, func(s *Set) *[]*v1.PersistentVolume { return &s.PersistentVolumes }, prepareVolume)
	registerKind("PersistentVolumeClaim", "v1", true,
		func(s *Set) *[]*v1.PersistentVolumeClaim { return &s.PersistentVolumeClaims }, prepareClaim)

	registerKind("ResourceQuota", "v1", true, func(s *Set) *[]*v1.ResourceQuota { return &s.ResourceQuotas }, nil)
	registerKind("LimitRange", "v1", true, func(s *Set) *[]*v1.LimitRange { return &s.LimitRanges }, nil)
	registerKind("PriorityClass", "scheduling.k8s.io/v1", false,
		func(s *Set) *[]*schedulingv1.PriorityClass { return &s.PriorityClasses }, preparePriorityClass)
	registerKind("RuntimeClass", "node.k8s.io/v1", false,
		func(s *Set) *[]*nodev1.RuntimeClass { return &s.RuntimeClasses }, rules.ValidateRuntimeClass)
	registerKind("PodDisruptionBudget", "policy/v1", true,
		func(s *Set) *[]*policyv1.PodDisruptionBudget { return &s.PodDisruptionBudgets }, rules.ValidatePDB)

	registerKind("StorageClass", storage, false, func(s *Set) *[]*storagev1.StorageClass { return &s.StorageClasses }, prepareStorageClass)
	registerKind("CSINode", storage, false, func(s *Set) *[]*storagev1.CSINode { return &s.CSINodes }, nil)
	registerKind("CSIDriver", storage, false, func(s *Set) *[]*storagev1.CSIDriver { return &s.CSIDrivers }, prepareDriver)
	registerKind("CSIStorageCapacity", storage, true, func(s *Set) *[]*storagev1.CSIStorageCapacity { return &s.CSIStorageCapacities }, nil)
	registerKind("VolumeAttachment", storage, false, func(s *Set) *[]*storagev1.VolumeAttachment { return &s.VolumeAttachments }, nil)
	registerKind("ResourceSlice", devices, false, func(s *Set) *[]*resourcev1.ResourceSlice { return &s.ResourceSlices }, nil)
	registerKind("ResourceClaim", devices, true, func(s *Set) *[]*resourcev1.ResourceClaim { return &s.ResourceClaims },
		prepareResourceClaim)
	registerKind("ResourceClaimTemplate", devices, true,
		func(s *Set) *[]*resourcev1.ResourceClaimTemplate { return &s.ResourceClaimTemplates }, prepareResourceClaimTemplate)

	registerKind("DeviceClass", devices, false, func(s *Set) *[]*resourcev1.DeviceClass { return &s.DeviceClasses }, nil)
	registerKind("DeviceTaintRule", devices, false, func(s *Set) *[]*resourcev1.DeviceTaintRule { return &s.DeviceTaintRules }, nil)
	registerKind("Lease", "coordination.k8s.io/v1", true, func(s *Set) *[]*coordinationv1.Lease { return &s.Leases }, nil)
	registerKind("Workload", groups, true, func(s *Set) *[]*schedulingv1beta1.Workload { return &s.Workloads }, rules.ValidateWorkload)
	registerKind("PodGroup", groups, true, func(s *Set) *[]*schedulingv1beta1.PodGroup { return &s.PodGroups }, rules.ValidatePodGroup)
	registerKind("CompositePodGroup", composites, true,
		func(s *Set) *[]*schedulingv1alpha3.CompositePodGroup { return &s.CompositePodGroups }, rules.ValidateCompositePodGroup)
	registerKind("Deployment", apps, true, func(s *Set) *[]*appsv1.Deployment { return &s.Deployments }, prepareDeployment)
	registerKind("ReplicaSet", apps, true, func(s *Set) *[]*appsv1.ReplicaSet { return &s.ReplicaSets }, prepareReplicaSet)
	registerKind("StatefulSet", apps, true, func(s *Set) *[]*appsv1.StatefulSet { return &s.StatefulSets }, prepareStatefulSet)

	registerKind("DaemonSet", apps, true, func(s *Set) *[]*appsv1.DaemonSet { return &s.DaemonSets }, prepareDaemonSet)
	registerKind("Job", batch, true, func(s *Set) *[]*batchv1.Job { return &s.Jobs }, prepareJob)
	registerKind("ReplicationController", "v1", true,
		func(s *Set) *[]*v1.ReplicationController { return &s.ReplicationControllers }, prepareReplicationController)
}

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

	// ForPlans holds the objects of kinds that only plans of nodes use; see PlanKinds.
	ForPlans []Document
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

// The kinds that only plans of nodes use, as in Ignored.
const (
	NodePool       = "NodePool.karpenter.sh"
	CapacityBuffer = "CapacityBuffer.autoscaling.x-k8s.io"
	PodTemplate    = "PodTemplate"
)

// PlanKinds lists the kinds that only plans of nodes use, with the paths of their lists.
var PlanKinds = map[string]string{
	NodePool:       "/apis/karpenter.sh/v1/nodepools",
	CapacityBuffer: "/apis/autoscaling.x-k8s.io/v1beta1/capacitybuffers",
	PodTemplate:    "/api/v1/podtemplates",
}

// Document is an object of a kind unused by this package, as JSON, with its place in the input.
type Document struct {
	Kind string // as in Ignored
	File string
	Line int
	Text []byte
}

// place is the position of an object in the input. It is small, because a set may have a million
// places.
type place struct {
	// file is an index of Set.files. line is the first line of the object in it, from 1. order is
	// its position among all objects of the input, the sort key of mergePods.
	file        int32
	line, order int32
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
	later := func(t metav1.Time) { newest = pacing.Later(newest, t.Time) }
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
		for i := range p.Status.Conditions {
			later(p.Status.Conditions[i].LastTransitionTime)
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
