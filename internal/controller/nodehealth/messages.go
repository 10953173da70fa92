// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
)

// Event is an input of the Core, of one of the types below: an observation, a response, or the
// passage of time.
type Event any

type (
	// Tick reports the passage of time, as scheduled by Wake.
	Tick struct{}
	// NodeSeen carries a new or changed node from a watch or list.
	NodeSeen struct{ Node Node }
	// NodeGone reports a deleted node.
	NodeGone struct{ Name string }
	// NodesListing begins a list and NodesListed ends it. Nodes not reported in between have been
	// deleted.
	NodesListing struct{}
	NodesListed  struct{}
	// LeaseSeen carries a node's Lease from a watch or list. Only a change of Renewed is a sign of
	// life; the value is not compared with any clock.
	LeaseSeen struct {
		Name            string
		ResourceVersion string
		Renewed         time.Time
	}
	// LeaseGone reports a deleted Lease.
	LeaseGone struct{ Name string }
	// LeasesListed reports the end of a list of Leases.
	LeasesListed struct{}
	// Blind reports a broken watch: signs of life are invisible. Silence does not count until
	// Sighted.
	Blind struct{}
	// Polled reports a complete list of all signs of life while a watch is broken.
	Polled struct{}
	// Sighted ends Blind.
	Sighted struct{}
	// Away reports that the process was stopped, or starved of CPU, since From. Healthy nodes may
	// look silent because their writes are still unread, so this silence does not count.
	Away struct{ From time.Time }
	// Answered is the response to the request with the ticket.
	Answered struct {
		Ticket     response.Ticket
		Outcome    response.Outcome
		RetryAfter time.Duration `json:",omitempty"` // requested by the server
		Node       *Node         // the current node, if the response or a later read contains it
		Lease      *LeaseSeen    `json:",omitempty"` // the Lease read
	}
)

// Action is an output of the Core.
type Action fmt.Stringer

type (
	// ReadLease reads a node's Lease live.
	ReadLease struct {
		Ticket response.Ticket
		Node   string
	}
	// WriteStatus writes conditions, conditional on the node's version.
	WriteStatus struct {
		Ticket          response.Ticket
		Node            string
		UID             types.UID
		ResourceVersion string
		Conditions      []v1.NodeCondition
	}
	// WriteNode replaces the taints if SetTaints is set, and sets the labels, conditional on the
	// node's version.
	WriteNode struct {
		Ticket          response.Ticket
		Node            string
		UID             types.UID
		ResourceVersion string
		SetTaints       bool
		Taints          []v1.Taint
		Labels          map[string]string
	}
	// MarkPods sets Ready=False on the node's pods.
	MarkPods struct {
		Ticket response.Ticket
		Node   string
	}
	// StopMarking cancels the MarkPods with the ticket, because the node has recovered. The
	// MarkPods still gets a response.
	StopMarking struct {
		Ticket response.Ticket
		Node   string
	}
	// Record emits an event about the node.
	Record struct {
		Node            string
		UID             types.UID
		Reason, Message string
	}
	// Dropped reports that a write is repeated because it succeeded without effect.
	Dropped struct {
		Node  string
		UID   types.UID
		Write string
	}
	// ZoneChanged reports a changed zone state, for the log.
	ZoneChanged struct {
		Zone     string
		From, To State
		Rate     float64 // admissions to evicting taints per second
	}
)

// String describes the action for logs and traces.
func (a ReadLease) String() string { return "read lease of " + a.Node }

func (a WriteStatus) String() string {
	words := rules.Mapped(a.Conditions, func(c v1.NodeCondition) string { return string(c.Type) + "=" + string(c.Status) })
	return "status of " + a.Node + ": " + strings.Join(words, " ")
}

func (a WriteNode) String() string {
	text := ""
	if a.SetTaints {
		words := rules.Mapped(a.Taints, func(t v1.Taint) string { return t.ToString() })
		text = "taints of " + a.Node + ": " + cmp.Or(strings.Join(words, " "), "none")
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

// ZoneName formats a zone's key as region:zone. The key itself contains a zero byte, as in
// upstream's metrics.
func ZoneName(key string) string { return strings.ReplaceAll(key, ":\x00:", ":") }
