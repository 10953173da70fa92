// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/response"
)

// Event is an input of the Core, of one of the types below: a watch event, an API response, or only
// the passing of time.
type Event any

type (
	// Tick signals the passing of time, as requested by Wake.
	Tick struct{}

	// PodSeen reports a new or changed pod from a watch or a list.
	PodSeen struct{ Pod Pod }
	// PodGone reports the deletion of a pod.
	PodGone struct {
		Name types.NamespacedName
		UID  types.UID
	}
	// PodsListing begins a list: the pods reported until PodsListed are complete, and any other pod
	// has been deleted.
	PodsListing struct{}
	// PodsListed ends the list.
	PodsListed struct{}

	// NodeSeen reports a new or changed node from a watch or a list.
	NodeSeen struct{ Node Node }
	// NodeGone reports the deletion of a node.
	NodeGone struct{ Name string }
	// NodesListing begins a list of nodes, like PodsListing. A node may have changed several times
	// since it was last observed.
	NodesListing struct{}
	// NodesListed ends the list.
	NodesListed struct{}

	// ClaimSeen, SliceSeen and RuleSeen report a new or changed ResourceClaim, ResourceSlice or
	// DeviceTaintRule from a watch or a list.
	ClaimSeen struct{ Claim Claim }
	SliceSeen struct{ Slice Slice }
	RuleSeen  struct{ Rule Rule }
	// ClaimGone, SliceGone and RuleGone report the deletion of such an object.
	ClaimGone struct{ Name types.NamespacedName }
	SliceGone struct{ Name string }
	RuleGone  struct{ Name string }
	// Listing begins a list of a kind, like PodsListing, and Listed ends it. A kind that the API
	// server does not serve is listed as empty.
	Listing struct{ Kind Kind }
	Listed  struct{ Kind Kind }

	// Answered is the response to the request with the ticket.
	Answered struct {
		Ticket     response.Ticket
		Outcome    response.Outcome
		Pod        *Pod          // as read, or as returned by a Mark
		Node       *Node         // as read
		Devices    *Devices      // as read
		RetryAfter time.Duration // requested by the server
		Unserved   bool          `json:",omitempty"` // with Failed: no server accepted the request
	}
)

// Action is an output of the Core. All except for Record are requests to the API.
type Action fmt.Stringer

type (
	// ReadNode reads the node live.
	ReadNode struct {
		response.Ticket
		Node string
	}
	// ReadPod reads the pod live.
	ReadPod struct {
		response.Ticket
		Name types.NamespacedName
	}
	// ReadDevices reads, from the API server, the device objects that require the pod's eviction:
	// claims, all slices of the pools, and rules. Nonexistent objects are missing from the
	// response.
	ReadDevices struct {
		response.Ticket
		Pod    types.NamespacedName
		Claims []types.NamespacedName
		Pools  []PoolAt
		Rules  []string
	}
	// Mark sets the condition DisruptionTarget on the pod with that UID; with a ResourceVersion,
	// only if the pod still has that version.
	Mark struct {
		response.Ticket
		Name            types.NamespacedName
		UID             types.UID
		ResourceVersion string
		Observed        int64
		Device          bool `json:",omitempty"` // for the taint of a device
	}
	// Delete deletes the pod with that UID, and no other pod of the same name.
	Delete struct {
		response.Ticket
		Name types.NamespacedName
		UID  types.UID
		Due  Due
	}
	// Evict is Delete through the Eviction API, subject to budgets.
	Evict struct {
		response.Ticket
		Name types.NamespacedName
		UID  types.UID
		Due  Due
	}
	// Annotate sets NoteAnnotation on the node if the node still has that version. An empty Note
	// removes the annotation.
	Annotate struct {
		response.Ticket
		Node            string
		ResourceVersion string
		Note            string
	}
	// WriteStatus sets the condition EvictionInProgress of the DeviceTaintRule with that UID.
	WriteStatus struct {
		response.Ticket
		Rule      string
		UID       types.UID
		Condition metav1.Condition
	}
	// Record emits an event on the pod. Its reason is TaintManagerEviction, or
	// DeviceTaintManagerEviction for the taint of a device.
	Record struct {
		Name    types.NamespacedName
		UID     types.UID
		Cancels bool
		Device  bool `json:",omitempty"`
	}
)

// PoolAt is a pool restricted to the slices with devices of one node or, if Node is empty, to the
// slices not bound to a node.
type PoolAt struct {
	Pool Pool
	Node string
}

// String describes the request for logs and traces.
func (a ReadNode) String() string { return "read node " + a.Node }
func (a ReadPod) String() string  { return "read pod " + a.Name.String() }
func (a ReadDevices) String() string {
	return "read devices of pod " + a.Pod.String()
}
func (a WriteStatus) String() string {
	return fmt.Sprintf("status of rule %s: %s %s %q", a.Rule, a.Condition.Status, a.Condition.Reason, a.Condition.Message)
}
func (a Mark) String() string   { return "mark pod " + a.Name.String() }
func (a Delete) String() string { return fmt.Sprintf("delete pod %s uid %s", a.Name, a.UID) }
func (a Evict) String() string  { return fmt.Sprintf("evict pod %s uid %s", a.Name, a.UID) }
func (a Record) String() string { return "event: " + a.Message() }
func (a Annotate) String() string {
	return "note on node " + a.Node + ": " + cmp.Or(a.Note, "none")
}

// Message returns the event's text in upstream's wording.
func (a Record) Message() string {
	switch {
	case a.Device && a.Cancels:
		return "Cancelling deletion"
	case a.Device:
		return "Marking for deletion"
	case a.Cancels:
		return "Cancelling deletion of Pod " + a.Name.String()
	}
	return "Marking for deletion Pod " + a.Name.String()
}
