// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"reflect"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Resource is a kind of API object, named as in the scheduling framework.
type Resource string

// The resources.
const (
	Pod                Resource = "Pod"            // any pod
	AssignedPod        Resource = "AssignedPod"    // a pod with a node or a nominated node
	UnscheduledPod     Resource = "UnscheduledPod" // a pending pod other than the rejected pod
	TargetPod          Resource = "TargetPod"      // the rejected pod itself
	Node               Resource = "Node"
	Volume             Resource = "PersistentVolume"
	Claim              Resource = "PersistentVolumeClaim"
	CSINode            Resource = "storage.k8s.io/CSINode"
	CSIDriver          Resource = "storage.k8s.io/CSIDriver"
	VolumeAttachment   Resource = "storage.k8s.io/VolumeAttachment"
	CSIStorageCapacity Resource = "storage.k8s.io/CSIStorageCapacity"
	StorageClass       Resource = "storage.k8s.io/StorageClass"
	ResourceClaim      Resource = "resource.k8s.io/ResourceClaim"
	ResourceSlice      Resource = "resource.k8s.io/ResourceSlice"
	DeviceClass        Resource = "resource.k8s.io/DeviceClass"
	Namespace          Resource = "Namespace"
	Budget             Resource = "policy/PodDisruptionBudget"
	Owner              Resource = "owners of pods" // Services, ReplicaSets and other owners
	PodGroup           Resource = "scheduling.k8s.io/PodGroup"
	CompositePodGroup  Resource = "scheduling.k8s.io/CompositePodGroup"
	AnyResource        Resource = "*"
)

// Action is a set of changes of an object, with the bits of the framework's ActionType.
type Action int64

// The actions.
const (
	Add Action = 1 << iota
	Delete
	UpdateNodeAllocatable
	UpdateNodeLabel
	UpdateNodeTaint // includes cordoning
	UpdateNodeCondition
	UpdateNodeAnnotation
	UpdateNodeDeclaredFeature
	UpdateNodePreemptionPolicy
	UpdatePodLabel
	UpdatePodScaleDown
	UpdatePodScaleUp
	UpdatePodToleration
	UpdatePodSchedulingGatesEliminated
	UpdatePodGeneratedResourceClaim

	All    Action = 1<<iota - 1
	Update        = All &^ (Add | Delete)
)

// Event is a change in the cluster, or of a pending pod, that may make a pending pod schedulable.
// All hints share the event and must not change it.
type Event struct {
	Resource Resource
	Action   Action
	Label    string // the event's name in metrics, as upstream

	// Old and New are the API objects before and after; nil if unknown.
	Old, New any

	// NodeBefore and Node are the node before and after, for events of nodes; nil if the node did
	// not exist before, or does not exist now. For events of placed pods, Node is the pod's node,
	// or nil if it is unknown.
	NodeBefore, Node *cluster.Node
	// PodBefore and Pod are the pod before and after, for events of placed pods.
	PodBefore, Pod *cluster.Pod
	// Own is the item of the pending pod that the event is about. Such an event concerns no other
	// pod.
	Own *Item

	objects int // bulk of Old and New; set when the event is kept
}

// bulkOf returns the excess of an API object over the usual size, in bytes of its API encoding.
func bulkOf(object any) int {
	const usual = 4 << 10
	if v := reflect.ValueOf(object); v.Kind() == reflect.Pointer && v.IsNil() {
		return 0
	}
	switch o := object.(type) {
	case interface{ Size() int }:
		return max(0, o.Size()-usual)
	case interface{ UnstructuredContent() map[string]any }: // a custom resource
		return max(0, sizeOf(o.UnstructuredContent())-usual)
	}
	return 0
}

// sizeOf estimates the size of a custom resource's value in its API encoding.
func sizeOf(value any) int {
	sum := 4 // delimiters around the value
	switch v := value.(type) {
	case string:
		sum += len(v)
	case []any:
		for _, each := range v {
			sum += sizeOf(each)
		}
	case map[string]any:
		for key, each := range v {
			sum += sizeOf(key) + sizeOf(each)
		}
	}
	return sum
}

// bulkOf returns the total bulk of the event's objects and the classes of its pods.
func (e *Event) bulkOf() (sum int) {
	sum = e.objects
	for _, p := range [...]*cluster.Pod{e.PodBefore, e.Pod} {
		if p != nil && p.Class != nil {
			sum += p.Class.Bulk
		}
	}
	if e.Own != nil && e.Own.Class != nil {
		sum += e.Own.Class.Bulk
	}
	return sum
}

// Interest is a kind of event that can change the verdict of a plugin that rejected a pod. The
// queue indexes waiting groups by the pointer, which identifies the Interest.
type Interest struct {
	Resource Resource
	Action   Action
	// Hint reports whether the event can help pods of the item's group. nil means that it always
	// can.
	Hint func(item *Item, event *Event) bool
	// PerPod: the hint examines differences between pods of a class, so it must be called for each
	// pod.
	PerPod bool
	// Narrowing, if set, selects the groups to be passed to the hint.
	Narrowing *Narrowing
}

// wantsEvent reports whether the interest covers events of this kind.
func (i *Interest) wantsEvent(e *Event) bool {
	if !i.coversResource(e) {
		return false
	}
	if e.Action == Update { // an update without a more specific action matches only interests in all updates
		return i.Action&Update == Update
	}
	return i.Action&e.Action != 0
}

// coversResource reports whether the interest covers the event's resource. Events of all pods have
// the resource Pod; Own is set for events of the rejected pod itself.
func (i *Interest) coversResource(e *Event) bool {
	switch {
	case i.Resource == e.Resource, i.Resource == AnyResource, e.Resource == AnyResource:
		return true
	case e.Resource == Pod:
		return i.Resource == AssignedPod && e.Own == nil || i.Resource == TargetPod && e.Own != nil
	}
	return false
}

// Interests holds the interests of a profile's plugins, by name. Any event can help a pod rejected
// by a plugin without an entry.
type Interests map[string][]Interest

// updateLabel returns the label for an update of a pending pod, as upstream: the name of the
// change, or Changed if the change has no name. If there are several changes, updateLabel names the
// lowest action, while upstream names the first helpful one.
func updateLabel(actions Action) string {
	if actions == 0 || actions&Update == Update {
		return Changed
	}
	return string(TargetPod) + (actions & -actions).String()
}

// Labels of events that are not changes of objects.
const (
	Appeared         = "UnscheduledPodAdd"
	Changed          = "TargetPodUpdate"
	AttemptFailed    = "ScheduleAttemptFailure"
	BackoffComplete  = "BackoffComplete"
	ForceActivate    = "ForceActivate"
	WaitedForTooLong = "UnschedulableTimeout"
)
