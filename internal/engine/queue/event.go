package queue

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Resource is a kind of API object, in the words of the scheduling framework.
type Resource string

// The resources.
const (
	Pod                Resource = "Pod"
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
	Owner              Resource = "owners of pods" // services, replica sets and their like, which select pods
	PodGroup           Resource = "scheduling.k8s.io/PodGroup"
	AnyResource        Resource = "*"
)

// Action is a set of what can happen to an object. The bits are those of the framework's
// ActionType.
type Action int64

// The actions.
const (
	Add Action = 1 << iota
	Delete
	UpdateNodeAllocatable
	UpdateNodeLabel
	UpdateNodeTaint // or cordon
	UpdateNodeCondition
	UpdateNodeAnnotation
	UpdateNodeDeclaredFeature
	UpdatePodLabel
	UpdatePodScaleDown
	UpdatePodToleration
	UpdatePodSchedulingGatesEliminated
	UpdatePodGeneratedResourceClaim

	All    Action = 1<<iota - 1
	Update        = All &^ (Add | Delete)
)

// Event is something that happened in the cluster, or to a pod that waits, and may let a waiting
// pod run.
type Event struct {
	Resource Resource
	Action   Action
	Label    string // names it in metrics, as upstream does

	// Old and New are the API objects, where the watch showed them or they were kept; nil
	// otherwise.
	Old, New any

	// NodeBefore and Node are the node before and after (nil where it was or is not there), for
	// events of nodes. Node is where the pod is or was, too, for events of pods that have their
	// place; nil if that node is not known.
	NodeBefore, Node *cluster.Node
	// PodBefore and Pod are the pod before and after, for events of pods that have their place.
	PodBefore, Pod *cluster.Pod
	// Own is set on events of a pod that waits: they concern nobody else.
	Own *Item
}

// Interest is something that can change the mind of a plugin that rejected a pod.
type Interest struct {
	Resource Resource
	Action   Action
	// Hint tells whether the event can help such pods, of which the item is one. nil: it always
	// can.
	Hint func(item *Item, event *Event) bool
	// PerPod: the hint looks at what sets a pod apart from others of its class, and must be asked
	// for each.
	PerPod bool
	// Narrowing, if set, says whom the hint need be asked about.
	Narrowing *Narrowing
}

// wants tells whether the interest is in such events at all.
func (i *Interest) wants(e *Event) bool {
	if i.Resource != e.Resource && i.Resource != AnyResource && e.Resource != AnyResource {
		return false
	}
	if e.Action == Update { // something else than what has a name: only for who is interested in all
		return i.Action&Update == Update
	}
	return i.Action&e.Action != 0
}

// Interests are those of the plugins of a profile, by name. A plugin that is not listed can be
// helped by anything.
type Interests map[string][]Interest

// Labels of events that are no change of an object.
const (
	Appeared         = "UnscheduledPodAdd"
	Changed          = "UnscheduledPodUpdate"
	AttemptFailed    = "ScheduleAttemptFailure"
	BackoffComplete  = "BackoffComplete"
	ForceActivate    = "ForceActivate"
	WaitedForTooLong = "UnschedulableTimeout"
)
