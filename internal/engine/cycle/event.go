package cycle

import (
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Event is something that the core is told: one of the types below.
type Event interface{ event() }

// Follows names the kinds that are watched. Nothing is decided before each of them has been listed
// once.
type Follows struct{ Kinds []Kind }

// Listing says that a list of all objects of a kind begins, and Listed that it is complete: what
// was known and is not among what was seen in between is gone.
type (
	Listing struct{ Kind Kind }
	Listed  struct{ Kind Kind }
)

// Seen shows an object as the API has it: a list's, or a new or changed one. The core keeps it;
// nobody changes it afterwards.
type Seen struct {
	Kind   Kind
	Object metav1.Object
}

// Gone shows the last state of an object that was deleted.
type Gone struct {
	Kind   Kind
	Object metav1.Object
}

// Read shows a pod that was read for the core, because of a ReadPod or to find out what became of a
// binding. It may be older than what a watch has shown.
type Read struct{ Pod *v1.Pod }

// Led says that this scheduler leads: from now on it decides.
type Led struct{}

// Configured replaces the profiles; see [Core.Check].
type Configured struct {
	Profiles []Profile
	// Source is the configuration file that they were read from, for a journal.
	Source []byte
}

// Tick lets time take effect: back-offs and waits that end, pods that events have woken. The most
// urgent active pod is decided.
type Tick struct{}

// Activate lets pods be tried at once, whatever they wait for.
type Activate struct{ Pods []types.UID }

// Happened tells of an event that no kind of object stands for: out-of-tree plugins watch resources
// of their own.
type Happened struct{ Event *queue.Event }

// PermitAllowed and PermitRejected are what a plugin says of a pod that it has wait at Permit.
type (
	PermitAllowed struct {
		Ticket Ticket
		Plugin string
	}
	PermitRejected struct {
		Ticket  Ticket
		Plugin  string
		Message string
		// Preempted: the pod's room is needed for another one. It is no verdict on the pod, which
		// is tried again.
		Preempted bool
	}
)

// ClaimMade says that the claim for a pod's extended resources now exists, in place of the one that
// stood in for it. It comes before the answer to the WriteClaims that it belongs to.
type ClaimMade struct {
	Ticket  Ticket
	StandIn cluster.Name
	Claim   *resourcev1.ResourceClaim
}

// Answered is what came of the action with that ticket.
type Answered struct {
	Ticket  Ticket
	Outcome Outcome
}

// Outcome is how an action ended. The zero value says that it was done.
type Outcome struct {
	// Fault says why it was not done.
	Fault *Fault
	// Withdrawn: it was cancelled before it was begun, so that it has had no effect.
	Withdrawn bool
	// Work is the answer to a Preflight: for each plugin what it has to do.
	Work []PreBindWork
	// Claims is the answer to a WriteClaims: the claims that were written, also where a later one
	// failed.
	Claims []*resourcev1.ResourceClaim
	// Written tells of which of the claims, in their order, the allocation is in the API, or may
	// be.
	Written []bool
}

// Fault is a reason why something was not done. It is an error that can be written down.
type Fault struct {
	Message string
	// Verdict: a plugin says so of the pod; the attempt did not go wrong.
	Verdict bool
}

// Error returns the message.
func (f *Fault) Error() string { return f.Message }

// Unschedulable tells that the pod was found not to fit, as opposed to an attempt that went wrong.
func (f *Fault) Unschedulable() bool { return f.Verdict }

func (Follows) event()        {}
func (Listing) event()        {}
func (Listed) event()         {}
func (Seen) event()           {}
func (Gone) event()           {}
func (Read) event()           {}
func (Led) event()            {}
func (Configured) event()     {}
func (Tick) event()           {}
func (Activate) event()       {}
func (Happened) event()       {}
func (PermitAllowed) event()  {}
func (PermitRejected) event() {}
func (ClaimMade) event()      {}
func (Answered) event()       {}

// Kind is a kind of object that is watched, by the name of its resource.
type Kind string

// The kinds.
const (
	Nodes                  Kind = "nodes"
	Pods                   Kind = "pods"
	Namespaces             Kind = "namespaces"
	Services               Kind = "services"
	ReplicationControllers Kind = "replicationcontrollers"
	ReplicaSets            Kind = "replicasets"
	StatefulSets           Kind = "statefulsets"
	DisruptionBudgets      Kind = "poddisruptionbudgets"
	Volumes                Kind = "persistentvolumes"
	Claims                 Kind = "persistentvolumeclaims"
	StorageClasses         Kind = "storageclasses"
	CSINodes               Kind = "csinodes"
	CSIDrivers             Kind = "csidrivers"
	CSICapacities          Kind = "csistoragecapacities"
	VolumeAttachments      Kind = "volumeattachments"
	ResourceSlices         Kind = "resourceslices"
	ResourceClaims         Kind = "resourceclaims"
	DeviceClasses          Kind = "deviceclasses"
	PodGroups              Kind = "podgroups" // followed where pod groups are switched on
)
