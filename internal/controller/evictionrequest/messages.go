// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionrequest

import (
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
)

// Kind is a watched kind.
type Kind int

// The watched kinds.
const (
	Requests Kind = iota
	Evictions
	Pods
	kinds
)

// Pod holds the relevant fields of a pod.
type Pod struct {
	Name types.NamespacedName
	UID  types.UID
	// Responders are copied from the pod's spec.
	Responders []v1.EvictionResponder
	// Grouped marks a member of a pod group, unsupported by EvictionRequests.
	Grouped bool
	// Leaving marks a terminating pod. Ended marks a pod in a terminal phase.
	Leaving, Ended bool
}

// PodOf returns the relevant fields of a pod.
func PodOf(p *v1.Pod) Pod {
	return Pod{
		Name: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: p.UID, Responders: p.Spec.EvictionResponders,
		Grouped: p.Spec.SchedulingGroup != nil, Leaving: p.DeletionTimestamp != nil, Ended: rules.IsTerminal(p),
	}
}

// Event is an input of the Core, of one of the types below.
type Event any

type (
	// Tick reports the passage of time, as scheduled by Wake.
	Tick struct{}
	// Listing announces a list of all objects of a kind; objects missing before Listed were
	// deleted.
	Listing struct{ Kind Kind }
	Listed  struct{ Kind Kind }

	// RequestSeen and its siblings carry new, changed or deleted objects from a watch or list. The
	// Core keeps the objects and never modifies them.
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

	// Answered is the response to an action.
	Answered struct {
		Ticket     response.Ticket
		Outcome    response.Outcome
		Message    string        // the reason of a failure
		RetryAfter time.Duration // from the header Retry-After, with Busy
		Pod        *Pod          // the pod read by ReadPod; nil if no pod has that UID
		Written    any           // the request or Eviction returned by a write
	}
)

// Action is a request to the API server, of one of the types below. Each gets a response.
type Action any

type (
	// ReadPod reads a pod.
	ReadPod struct {
		response.Ticket
		Name types.NamespacedName
		UID  types.UID
	}
	// Evict evicts a pod through the Eviction API, with its UID as precondition.
	Evict struct {
		response.Ticket
		Name types.NamespacedName
		UID  types.UID
	}
	// Create creates an Eviction, or returns the existing one.
	Create struct {
		response.Ticket
		Eviction *lifecyclev1alpha1.Eviction
	}
	// Label writes the labels of an Eviction, WriteEviction writes its status, and WriteRequest
	// writes the status of a request. All three are conditional on the object's version.
	Label struct {
		response.Ticket
		Eviction *lifecyclev1alpha1.Eviction
	}
	WriteEviction struct {
		response.Ticket
		Eviction *lifecyclev1alpha1.Eviction
	}
	WriteRequest struct {
		response.Ticket
		Request *lifecyclev1alpha1.EvictionRequest
	}
	// Delete deletes an Eviction, with its UID as precondition.
	Delete struct {
		response.Ticket
		Eviction *lifecyclev1alpha1.Eviction
	}
)
