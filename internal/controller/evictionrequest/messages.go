package evictionrequest

import (
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Kind is one of the kinds that are listed.
type Kind int

// The kinds.
const (
	Requests Kind = iota
	Evictions
	Pods
	kinds
)

// Pod is what is known of a pod.
type Pod struct {
	Name types.NamespacedName
	UID  types.UID
	// Responders are those of its spec.
	Responders []v1.EvictionResponder
	// Grouped: it is of a pod group, which EvictionRequests do not support.
	Grouped bool
	// Leaving: it is being deleted. Ended: its containers have, for good.
	Leaving, Ended bool
}

// PodOf returns what is known of a pod.
func PodOf(p *v1.Pod) Pod {
	return Pod{
		Name: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: p.UID, Responders: p.Spec.EvictionResponders,
		Grouped: p.Spec.SchedulingGroup != nil, Leaving: p.DeletionTimestamp != nil, Ended: rules.IsTerminal(p),
	}
}

// Event is something that happened.
type Event interface{ event() }

type (
	// Tick means only that time has passed, as Wake asked for.
	Tick struct{}
	// Listing means that all objects of a kind are going to be seen; those that are not seen before
	// Listed are gone.
	Listing struct{ Kind Kind }
	Listed  struct{ Kind Kind }

	// RequestSeen and its siblings are objects that a watch or a list showed, or that a watch
	// showed to be deleted. The Core keeps the objects and never changes them.
	RequestSeen struct {
		Request *lifecyclev1alpha1.EvictionRequest
	}
	RequestGone struct {
		Request *lifecyclev1alpha1.EvictionRequest
	}
	EvictionSeen struct{ Eviction *lifecyclev1alpha1.Eviction }
	EvictionGone struct{ Eviction *lifecyclev1alpha1.Eviction }
	PodSeen      struct{ Pod Pod }
	PodGone      struct {
		Name types.NamespacedName
		UID  types.UID
	}

	// Answered is the answer to an action.
	Answered struct {
		Ticket     Ticket
		Outcome    Outcome
		Message    string        // why not
		RetryAfter time.Duration // as the server asks, with Busy
		Pod        *Pod          // of ReadPod; nil if there is none of that UID
		Written    any           // the request or the Eviction as it is now, after a write
	}
)

func (Tick) event()         {}
func (Listing) event()      {}
func (Listed) event()       {}
func (RequestSeen) event()  {}
func (RequestGone) event()  {}
func (EvictionSeen) event() {}
func (EvictionGone) event() {}
func (PodSeen) event()      {}
func (PodGone) event()      {}
func (Answered) event()     {}

// Ticket identifies an action, so that its answer can be matched.
type Ticket uint64

// Outcome is the API's answer to an action.
type Outcome int

// The outcomes.
const (
	OK       Outcome = iota
	NotFound         // no object of that name and UID
	Conflict         // another version: what was decided is out of date
	Busy             // 429: a budget, or the server itself, refuses for now
	Failed           // any other refusal, or no answer
)

// Action is a request to the API server. Each is answered.
type Action interface{ action() }

type (
	// ReadPod reads a pod.
	ReadPod struct {
		Ticket Ticket
		Name   types.NamespacedName
		UID    types.UID
	}
	// Evict evicts a pod through the Eviction API, with its UID as precondition.
	Evict struct {
		Ticket Ticket
		Name   types.NamespacedName
		UID    types.UID
	}
	// Create creates an Eviction. One that is there already is no failure.
	Create struct {
		Ticket   Ticket
		Eviction *lifecyclev1alpha1.Eviction
	}
	// Label writes the labels of an Eviction, WriteEviction its status, WriteRequest that of a
	// request: on condition of the version that the object has.
	Label struct {
		Ticket   Ticket
		Eviction *lifecyclev1alpha1.Eviction
	}
	WriteEviction struct {
		Ticket   Ticket
		Eviction *lifecyclev1alpha1.Eviction
	}
	WriteRequest struct {
		Ticket  Ticket
		Request *lifecyclev1alpha1.EvictionRequest
	}
	// Delete deletes an Eviction, with its UID as precondition.
	Delete struct {
		Ticket   Ticket
		Eviction *lifecyclev1alpha1.Eviction
	}
)

func (ReadPod) action()       {}
func (Evict) action()         {}
func (Create) action()        {}
func (Label) action()         {}
func (WriteEviction) action() {}
func (WriteRequest) action()  {}
func (Delete) action()        {}
