package eviction

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Event is something that happened: shown by a watch, answered by the API, or just the passing of
// time.
type Event interface{ isEvent() }

type (
	// Tick means only that time has passed, as Wake asked for.
	Tick struct{}

	// PodSeen is a pod that a watch or a list showed, new or changed.
	PodSeen struct{ Pod Pod }
	// PodGone is a pod that a watch showed to be deleted.
	PodGone struct {
		Name types.NamespacedName
		UID  types.UID
	}
	// PodsListing begins a list: the pods seen until PodsListed are all that exist, and every other
	// pod is gone.
	PodsListing struct{}
	// PodsListed ends the list.
	PodsListed struct{}

	// NodeSeen is a node that a watch or a list showed, new or changed.
	NodeSeen struct{ Node Node }
	// NodeGone is a node that a watch showed to be deleted.
	NodeGone struct{ Name string }
	// NodesListing begins a list of nodes, like PodsListing. A node may have changed several times
	// since it was last seen.
	NodesListing struct{}
	// NodesListed ends the list.
	NodesListed struct{}

	// ClaimSeen is a ResourceClaim, SliceSeen a ResourceSlice, and RuleSeen a DeviceTaintRule that
	// a watch or a list showed, new or changed.
	ClaimSeen struct{ Claim Claim }
	SliceSeen struct{ Slice Slice }
	RuleSeen  struct{ Rule Rule }
	// ClaimGone and its siblings are such objects that a watch showed to be deleted.
	ClaimGone struct{ Name types.NamespacedName }
	SliceGone struct{ Name string }
	RuleGone  struct{ Name string }
	// Listing begins a list of a kind, like PodsListing, and Listed ends it. A kind that the API
	// server does not have is listed as one without objects.
	Listing struct{ Kind Kind }
	Listed  struct{ Kind Kind }

	// Answered is the outcome of the request with that ticket.
	Answered struct {
		Ticket     Ticket
		Outcome    Outcome
		Pod        *Pod          // as read, or as it is after a Mark
		Node       *Node         // as read
		Devices    *Devices      // as read
		RetryAfter time.Duration // as the server asks, with Busy
	}
)

func (Tick) isEvent()         {}
func (PodSeen) isEvent()      {}
func (PodGone) isEvent()      {}
func (PodsListing) isEvent()  {}
func (PodsListed) isEvent()   {}
func (NodeSeen) isEvent()     {}
func (NodeGone) isEvent()     {}
func (NodesListing) isEvent() {}
func (NodesListed) isEvent()  {}
func (ClaimSeen) isEvent()    {}
func (SliceSeen) isEvent()    {}
func (RuleSeen) isEvent()     {}
func (ClaimGone) isEvent()    {}
func (SliceGone) isEvent()    {}
func (RuleGone) isEvent()     {}
func (Listing) isEvent()      {}
func (Listed) isEvent()       {}
func (Answered) isEvent()     {}

// Ticket identifies a request, so that its answer can be matched. Every request is answered exactly
// once, however late. Record is not a request.
type Ticket uint64

// Outcome is the API's answer to a request.
type Outcome int

const (
	OK       Outcome = iota
	Gone             // 404: no object of that name
	Conflict         // 409: another UID or resource version than asked for
	Busy             // 429: a budget, or the server itself, refuses for now
	Refused          // another 4xx: a webhook, missing permissions, validation
	Failed           // 5xx, a time-out, no connection: it may have been done or not
)

// String names the outcome for logs.
func (o Outcome) String() string {
	if names := [...]string{"OK", "Gone", "Conflict", "Busy", "Refused", "Failed"}; o >= 0 && int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// Action is something to do. All except for Record are requests to the API.
type Action interface {
	isAction()
	fmt.Stringer
}

type (
	// ReadNode reads the node live.
	ReadNode struct {
		Ticket Ticket
		Node   string
	}
	// ReadPod reads the pod live.
	ReadPod struct {
		Ticket Ticket
		Name   types.NamespacedName
	}
	// ReadDevices reads live what asks the pod to go: claims, all slices of the pools, and rules.
	// Those that do not exist are left out of the answer.
	ReadDevices struct {
		Ticket Ticket
		Pod    types.NamespacedName
		Claims []types.NamespacedName
		Pools  []PoolAt
		Rules  []string
	}
	// Mark sets the condition DisruptionTarget on the pod with that UID; with a ResourceVersion,
	// only if the pod has not changed since.
	Mark struct {
		Ticket          Ticket
		Name            types.NamespacedName
		UID             types.UID
		ResourceVersion string
		Observed        int64
		Device          bool `json:",omitempty"` // for the taint of a device
	}
	// Delete deletes the pod with that UID, and no other pod of the same name.
	Delete struct {
		Ticket Ticket
		Name   types.NamespacedName
		UID    types.UID
		Due    Due
	}
	// Evict is Delete through the Eviction API, which budgets may refuse.
	Evict struct {
		Ticket Ticket
		Name   types.NamespacedName
		UID    types.UID
		Due    Due
	}
	// Annotate sets NoteAnnotation on the node if it still has that version; "" removes it.
	Annotate struct {
		Ticket          Ticket
		Node            string
		ResourceVersion string
		Note            string
	}
	// WriteStatus sets the condition EvictionInProgress of the DeviceTaintRule with that UID.
	WriteStatus struct {
		Ticket    Ticket
		Rule      string
		UID       types.UID
		Condition metav1.Condition
	}
	// Record is an event on the pod, reason TaintManagerEviction, or DeviceTaintManagerEviction for
	// the taint of a device.
	Record struct {
		Name    types.NamespacedName
		UID     types.UID
		Cancels bool
		Device  bool `json:",omitempty"`
	}
)

// PoolAt is a pool, and the node whose devices the slices have that are meant, "" for those that
// are not of one node.
type PoolAt struct {
	Pool Pool
	Node string
}

func (ReadNode) isAction()    {}
func (ReadPod) isAction()     {}
func (ReadDevices) isAction() {}
func (Mark) isAction()        {}
func (Delete) isAction()      {}
func (Evict) isAction()       {}
func (Annotate) isAction()    {}
func (WriteStatus) isAction() {}
func (Record) isAction()      {}

// String names the request for logs and traces, as do its siblings.
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
	if a.Note == "" {
		return "note on node " + a.Node + ": none"
	}
	return "note on node " + a.Node + ": " + a.Note
}

// Message is the event's text, as upstream words it.
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
