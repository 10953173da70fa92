package nodehealth

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Event is something that happened: shown by a watch, answered by the API, or just the passing of
// time.
type Event interface{ isEvent() }

type (
	// Tick means only that time has passed, as Wake asked for.
	Tick struct{}
	// NodeSeen is a node that a watch or a list showed, new or changed.
	NodeSeen struct{ Node Node }
	// NodeGone is a node that a watch showed to be deleted.
	NodeGone struct{ Name string }
	// NodesListing begins a list and NodesListed ends it: nodes that were not seen in between are
	// gone.
	NodesListing struct{}
	NodesListed  struct{}
	// LeaseSeen is a node's Lease that a watch or a list showed. What counts is that Renewed has
	// changed, not its value.
	LeaseSeen struct {
		Name            string
		ResourceVersion string
		Renewed         time.Time
	}
	// LeaseGone is a lease that was deleted.
	LeaseGone struct{ Name string }
	// LeasesListed says that all leases have been seen.
	LeasesListed struct{}
	// Blind means that signs of life cannot be seen, because a watch is broken. Silence does not
	// count until Sighted.
	Blind struct{}
	// Polled means that, while a watch is broken, all signs of life up to now were listed.
	Polled struct{}
	// Sighted means that they can be seen again.
	Sighted struct{}
	// Away means that the process was stopped since From, or was not given the processor, for so
	// long that healthy nodes may look silent: what they have written meanwhile is still to be
	// read. That silence does not count.
	Away struct{ From time.Time }
	// Answered is the outcome of the request with that ticket.
	Answered struct {
		Ticket  Ticket
		Outcome Outcome
		Node    *Node      // as it is now, if the answer or a reading after it tells
		Lease   *LeaseSeen `json:",omitempty"` // as read
	}
)

func (Tick) isEvent()         {}
func (NodeSeen) isEvent()     {}
func (NodeGone) isEvent()     {}
func (NodesListing) isEvent() {}
func (NodesListed) isEvent()  {}
func (LeaseSeen) isEvent()    {}
func (LeaseGone) isEvent()    {}
func (LeasesListed) isEvent() {}
func (Blind) isEvent()        {}
func (Polled) isEvent()       {}
func (Sighted) isEvent()      {}
func (Away) isEvent()         {}
func (Answered) isEvent()     {}

// Ticket identifies a request, so that its answer can be matched.
type Ticket uint64

// Outcome is the API's answer to a request.
type Outcome int

const (
	OK     Outcome = iota
	Gone           // the node no longer exists
	Stale          // the node has changed: decide again, on Answered.Node
	Failed         // anything else; it may have been done or not
)

// String names the outcome for logs.
func (o Outcome) String() string {
	if names := [...]string{"OK", "Gone", "Stale", "Failed"}; o >= 0 && int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// Action is something to do.
type Action interface {
	isAction()
	fmt.Stringer
}

type (
	// ReadLease reads the node's Lease live.
	ReadLease struct {
		Ticket Ticket
		Node   string
	}
	// WriteStatus writes conditions on that version of the node.
	WriteStatus struct {
		Ticket          Ticket
		Node            string
		UID             types.UID
		ResourceVersion string
		Conditions      []v1.NodeCondition
	}
	// WriteNode replaces the list of taints, if SetTaints, and sets labels, on that version of the
	// node.
	WriteNode struct {
		Ticket          Ticket
		Node            string
		UID             types.UID
		ResourceVersion string
		SetTaints       bool
		Taints          []v1.Taint
		Labels          map[string]string
	}
	// MarkPods sets Ready=False on the pods of the node.
	MarkPods struct {
		Ticket Ticket
		Node   string
	}
	// StopMarking ends the MarkPods with that ticket, if it is still under way: the node is back.
	// MarkPods is answered all the same.
	StopMarking struct {
		Ticket Ticket
		Node   string
	}
	// Record is an event on the node.
	Record struct {
		Node            string
		UID             types.UID
		Reason, Message string
	}
	// Dropped reports a write that succeeded repeatedly without effect.
	Dropped struct {
		Node  string
		UID   types.UID
		Write string
	}
	// ZoneChanged is for the log: the state of a zone has changed.
	ZoneChanged struct {
		Zone     string
		From, To State
		Rate     float64 // nodes per second that may get a taint that evicts
	}
)

func (ReadLease) isAction()   {}
func (WriteStatus) isAction() {}
func (WriteNode) isAction()   {}
func (MarkPods) isAction()    {}
func (StopMarking) isAction() {}
func (Record) isAction()      {}
func (Dropped) isAction()     {}
func (ZoneChanged) isAction() {}

// String names the action for logs and traces, as do its siblings.
func (a ReadLease) String() string { return "read lease of " + a.Node }

func (a WriteStatus) String() string {
	var words []string
	for _, c := range a.Conditions {
		words = append(words, string(c.Type)+"="+string(c.Status))
	}
	return "status of " + a.Node + ": " + strings.Join(words, " ")
}

func (a WriteNode) String() string {
	text := ""
	if a.SetTaints {
		words := []string{"none"}
		if len(a.Taints) > 0 {
			words = words[:0]
		}
		for i := range a.Taints {
			words = append(words, a.Taints[i].ToString())
		}
		text = "taints of " + a.Node + ": " + strings.Join(words, " ")
	}
	if len(a.Labels) > 0 {
		text += fmt.Sprintf(" labels of %s: %v", a.Node, a.Labels)
	}
	return strings.TrimSpace(text)
}

func (a MarkPods) String() string    { return "pods of " + a.Node + ": Ready=False" }
func (a StopMarking) String() string { return "pods of " + a.Node + ": no longer Ready=False" }
func (a Record) String() string      { return "event " + a.Reason + ": " + a.Message }
func (a Dropped) String() string     { return "dropped: " + a.Write }
func (a ZoneChanged) String() string {
	return fmt.Sprintf("zone %q: %s, was %s; %g nodes/s", ZoneName(a.Zone), a.To, a.From, a.Rate)
}

// ZoneName is a zone's key in readable form, region:zone. The key itself, which metrics carry as
// upstream's do, contains a zero byte.
func ZoneName(key string) string { return strings.ReplaceAll(key, ":\x00:", ":") }
