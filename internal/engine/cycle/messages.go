// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Event is an input of the core: one of the types below. Object events arrive from lists and
// watches in the API server's order per kind. The order between kinds is undefined. For example,
// every component must handle a pod that arrives before its PodGroup, or a claim that arrives
// before its volume.
type Event any

// Follows names the watched kinds. No decision is made before each kind has been listed once.
type Follows struct{ Kinds []Kind }

// Listing marks the beginning of a full list of a kind, and Listed marks its end. Known objects
// missing from the list were deleted.
type (
	Listing struct{ Kind Kind }
	Listed  struct{ Kind Kind }
)

// Seen shows the state of an object in the API. The object is from a list, or is new or changed.
// The core keeps a reference; the object must not be changed afterwards.
type Seen struct {
	Kind   Kind
	Object metav1.Object
}

// Gone shows the last state of a deleted object.
type Gone struct {
	Kind   Kind
	Object metav1.Object
}

// Read shows a pod fetched for a ReadPod, or to determine the result of a binding. It may be older
// than the state shown by a watch.
type Read struct{ Pod *v1.Pod }

// Led makes this scheduler the leader: from now on it decides. No event ends the leadership; a core
// leads until it is no longer stepped.
type Led struct{}

// WallSet reports how far the wall clock, used for times in API objects, is now ahead of the core's
// clock, which is never adjusted. Before the first WallSet, the two clocks agree.
type WallSet struct{ Ahead time.Duration }

// Configured replaces the profiles; see [Core.Check].
type Configured struct {
	Profiles []Profile
	// Source is the content of the profiles' configuration file, for a journal.
	Source []byte
}

// Tick handles the passage of time: expired back-offs and waits end, pending events wake pods, and
// the first pod of the active queue is decided.
type Tick struct{}

// Activate retries pods immediately, regardless of the events they wait for. Gates can still reject
// them.
type Activate struct{ Pods []types.UID }

// Happened reports an event of a resource that only out-of-tree plugins watch.
type Happened struct{ Event *queue.Event }

// Answered reports the outcome of the action with that ticket.
type Answered struct {
	Ticket  Ticket
	Outcome Outcome
}

// Outcome is the result of an action. The zero value means success.
type Outcome struct {
	// Fault, if set, is the reason why the action failed.
	Fault *Fault
	// Withdrawn: the action was cancelled before it began, and had no effect.
	Withdrawn bool
	// Work is the outcome of a Preflight: the work of each plugin, in the order of the plugins.
	Work []PreBindWork
	// Claims is the outcome of a WriteClaims: the written claims, even if a later write failed.
	Claims []*resourcev1.ResourceClaim
	// Written reports, for each claim in order, whether the allocation is or may be in the API.
	Written []bool
}

// Fault is an error that can be written to a journal. It keeps only the error's text and wraps
// nothing.
type Fault struct {
	Message string // for the pod's condition and events
	// Verdict: the message is a plugin's verdict on the pod, not a failure.
	Verdict bool
}

// Error returns the message.
func (f *Fault) Error() string { return f.Message }

// Unschedulable reports whether the fault is a plugin's verdict rather than a failure.
func (f *Fault) Unschedulable() bool { return f.Verdict }

// Kind is a watched kind of object, named by its resource.
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
	DeviceTaintRules       Kind = "devicetaintrules"
	PodGroups              Kind = "podgroups" // followed if pod groups are enabled
	CompositePodGroups     Kind = "compositepodgroups"
	PriorityClasses        Kind = "priorityclasses" // followed if a profile preempts gently
	MoveLeases             Kind = "leases"          // a single Lease, which holds a [MoveReservation]
)

// Ticket links an action to its outcome. Tickets are issued in order, starting from 1. Zero means
// no ticket: the action has no outcome.
type Ticket uint64

// Action is a request by the core: one of the types below. Given the same events, two cores return
// actions with the same printed form, which tests and replays compare, so it contains all decided
// values. The actions of a stage are in the file of the stage. Actions of one Step may be carried
// out in any order, except that writes to one pod (WriteStatus) must reach the API in the returned
// order.
type Action fmt.Stringer

// Ready is returned once, when all kinds are listed, this scheduler leads, and scheduling begins.
type Ready struct{}

func (Ready) String() string { return "ready" }

// Cancel requests that an action end as soon as possible. The action still has an outcome:
// Withdrawn if it had not begun. An action that has begun may succeed or fail, as its outcome
// shows.
type Cancel struct {
	Ticket Ticket
	Reason string
}

func (a Cancel) String() string { return fmt.Sprintf("cancel #%d: %s", a.Ticket, a.Reason) }

// WriteStatus writes a condition, the nominated node, or both to a pod; a nil field is left
// unchanged. It has an outcome only if it has a ticket. A nominated node of "" clears the field.
type WriteStatus struct {
	Ticket    Ticket
	Pod       *v1.Pod
	Condition *v1.PodCondition
	Nominate  *string
	// Reworded: the write changes only the message of the existing condition, and may be delayed
	// until after all other writes.
	Reworded bool
}

func (a WriteStatus) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "write status of %s", podName(a.Pod))
	if a.Ticket != 0 {
		fmt.Fprintf(&b, " #%d", a.Ticket)
	}
	if a.Nominate != nil {
		fmt.Fprintf(&b, ", nominated %q", *a.Nominate)
	}
	if c := a.Condition; c != nil {
		fmt.Fprintf(&b, ", %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

// RecordEvent records a Kubernetes Event about an object. It has no outcome, and may be dropped.
type RecordEvent struct {
	Profile               string // the reporting component: a scheduler name
	Regarding             v1.ObjectReference
	Type, Reason, Message string
}

func (a RecordEvent) String() string {
	return fmt.Sprintf("tell %s %s of %s/%s: %s", a.Type, a.Reason, a.Regarding.Namespace, a.Regarding.Name, a.Message)
}

// ReadPod fetches a pod of which the core has kept only the name, or whose binding is overdue. The
// reply is Read; a deleted pod gets no reply.
type ReadPod struct{ Name cluster.Name }

func (a ReadPod) String() string { return fmt.Sprintf("read %s/%s", a.Name.Namespace, a.Name.Name) }

// Panicked reports a panic while deciding a pod. The attempt has ended, and all state derived from
// pods and nodes has been recomputed.
type Panicked struct {
	Pod   v1.ObjectReference
	Value string
	Stack []byte
	// Mended counts the nodes whose totals differed from the totals of their pods in the API, and
	// were corrected.
	Mended int
}

func (a Panicked) String() string {
	text := fmt.Sprintf("panic while %s/%s was decided: %s", a.Pod.Namespace, a.Pod.Name, a.Value)
	if a.Mended > 0 {
		text += fmt.Sprintf(" (%d nodes mended)", a.Mended)
	}
	return text
}
