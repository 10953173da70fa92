// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
)

// Knowledge is the whole state of a Core as plain data: a Core restored from it reacts to every
// event exactly like the saved one. It shares nothing with the running Core.
//
// Journals store Knowledge as JSON, so its field names are part of their format. The meaning of a
// field is documented at the corresponding field of pod, node, rule or attempt.
type Knowledge struct {
	Nodes []NodeState // by name
	Pods  []PodState  // in the order of their first observation
	Tries []TryState  // attempts waiting for a response, by ticket
	Notes []NoteState // writes of notes waiting for a response, by ticket
	// Unnoted lists the nodes with a note to be written, in the order of notes.late.
	Unnoted []string

	Tickets                         response.Ticket // the last ticket issued
	Sights                          uint64          // the last number assigned to a pod
	Stats                           Stats
	PodList, NodeList               uint32 // numbers of the current lists
	PodsAreListing, NodesAreListing bool
	Unanswered                      int       // pause.failures
	PausedUntil                     time.Time // earliest time of the next attempt

	Devices DevicesState   `json:",omitzero"`
	Lists   [kinds]listing `json:",omitzero"` // lists of the device kinds
	// Telling are the status writes waiting for a response, by ticket.
	Telling []StatusWriteState `json:",omitempty"`
}

// DevicesState is the known state of devices: claims, slices and rules, each sorted by name.
type DevicesState struct {
	Claims []ClaimState `json:",omitempty"`
	Slices []SliceState `json:",omitempty"`
	Rules  []RuleState  `json:",omitempty"`
}

// ClaimState is a claim and the number of the last list that contained it.
type ClaimState struct {
	Claim
	List uint32
}

// SliceState is a slice with the starts of its devices' taints.
type SliceState struct {
	Slice
	List uint32
	Held [][]Held // parallel to Slice.Devices
}

// RuleState is a rule and the state of its status.
type RuleState struct {
	Rule
	List      uint32
	Held      Held      // the rule's taint with its start
	Evicted   int       // number of pods evicted since the Core started
	StatusDue time.Time `json:"TellAt"` // time of the next status check; zero: none before the next event
	Tries     int       // failed writes of the status in a row
}

// StatusWriteState is a write of a status in flight.
type StatusWriteState struct {
	Ticket response.Ticket
	Rule   string // "": deleted since
}

// NodeState is a node with the UIDs of its pods.
type NodeState struct {
	nodeRecord
	Pods []types.UID // in the order of node.pods
}

// PodState is a pod bound to a node. Restore recomputes byNode and byDevice.
type PodState struct {
	podRecord
	On string // the node's name
}

// TryState is an attempt to evict a pod.
type TryState struct {
	attemptRecord
	Ticket response.Ticket
	Pod    types.UID    // "": deleted since
	Also   []TryState   // attempts that wait for the same response, and have no ticket
	Found  DevicesState `json:",omitzero"`
}

// NoteState is a write of a note in flight.
type NoteState struct {
	Ticket response.Ticket
	Node   string // "": deleted since
}

// Save returns the Core's state, in an order that depends only on the state.
func (c *Core) Save() Knowledge {
	s := Knowledge{
		Tickets: c.out.tickets, Sights: c.mirror.sights, Stats: c.Stats(), PodList: c.mirror.podList.Number,
		NodeList: c.mirror.nodeList.Number, PodsAreListing: c.mirror.podList.Listing, NodesAreListing: c.mirror.nodeList.Listing,
		Unanswered: c.evictor.pause.failures, PausedUntil: c.evictor.pause.until,
	}

	for _, name := range slices.Sorted(maps.Keys(c.mirror.nodes)) {
		n := c.mirror.nodes[name]
		saved := NodeState{nodeRecord: n.nodeRecord, Pods: rules.Mapped(n.pods, func(p *pod) types.UID { return p.UID })}
		saved.Held = slices.Clone(n.Held)
		s.Nodes = append(s.Nodes, saved)
	}

	for _, p := range c.mirror.pods {
		s.Pods = append(s.Pods, PodState{podRecord: p.podRecord, On: p.node.Name})
	}

	// Pods are sorted by first observation, which determines the order of the Core's actions.
	slices.SortFunc(s.Pods, func(a, b PodState) int { return cmp.Compare(a.Number, b.Number) })
	for _, ticket := range slices.Sorted(maps.Keys(c.evictor.attempts)) {
		s.Tries = append(s.Tries, saveTry(ticket, c.evictor.attempts[ticket]))
	}

	for _, ticket := range slices.Sorted(maps.Keys(c.notes.written)) {
		saved := NoteState{Ticket: ticket}
		// If the node has been deleted since, the response applies neither to it nor to a
		// replacement of the same name.
		if n := c.notes.written[ticket]; c.mirror.nodes[n.Name] == n {
			saved.Node = n.Name
		}
		s.Notes = append(s.Notes, saved)
	}

	s.Unnoted = rules.Mapped(c.notes.late, func(n *node) string { return n.Name })
	c.saveDevices(&s)
	return s
}

// saveTry saves an attempt together with the attempts waiting for the same read.
func saveTry(ticket response.Ticket, a *attempt) TryState {
	saved := TryState{attemptRecord: a.attemptRecord, Ticket: ticket, Found: a.found.saveState()}
	saved.Held = slices.Clone(a.Held)
	if a.pod != nil {
		saved.Pod = a.pod.UID
	}
	saved.Also = rules.Mapped(a.also, func(other *attempt) TryState { return saveTry(0, other) })
	return saved
}

// Restore returns a Core with a saved state. The options must equal those of the saved Core. The
// order of the steps matters: nodes before the pods on them, pods before the attempts that hold
// them, and the queue last, which excludes pods held by an attempt.
func Restore(options Options, s Knowledge) *Core {
	c := New(options)
	c.out.tickets, c.mirror.sights = s.Tickets, s.Sights
	c.evictor.retries, c.deadlines.cancelled, c.evictor.averted = s.Stats.Retries, s.Stats.Cancelled, s.Stats.Averted
	c.mirror.podList = listing{Number: s.PodList, Listing: s.PodsAreListing}
	c.mirror.nodeList = listing{Number: s.NodeList, Listing: s.NodesAreListing}
	c.evictor.pause = pause{failures: s.Unanswered, until: s.PausedUntil}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		c.mirror.nodes[n.Name] = &node{nodeRecord: n.nodeRecord}
	}

	for i := range s.Pods {
		p := &s.Pods[i]
		restored := &pod{podRecord: p.podRecord, node: c.mirror.nodeNamed(p.On), place: -1}
		restored.Due = Due{}
		c.deadlines.setDue(restored, p.Due)
		// setDue sets device for a due pod. For a pod without a deadline, device keeps its last
		// value.
		restored.Device = p.Device
		c.mirror.pods[p.UID], c.mirror.names[p.Name] = restored, p.UID
		c.devices.addUser(restored)
	}

	for i := range s.Nodes {
		for _, uid := range s.Nodes[i].Pods {
			if p := c.mirror.pods[uid]; p != nil {
				c.mirror.nodes[s.Nodes[i].Name].addPod(p)
			}
		}
	}

	c.restoreDevices(&s)
	for i := range s.Tries {
		c.evictor.attempts[s.Tries[i].Ticket] = c.restoreTry(&s.Tries[i])
	}

	for _, p := range c.mirror.pods {
		c.deadlines.enqueuePod(p)
	}
	for _, saved := range s.Notes {
		c.notes.written[saved.Ticket] = cmp.Or(c.mirror.nodes[saved.Node], &node{})
	}

	c.notes.late = rules.Mapped(s.Unnoted, c.mirror.nodeNamed)
	return c
}

// restoreTry is the counterpart of saveTry. If the pod was deleted during the attempt, the attempt
// has no pod, but still waits for its response.
func (c *Core) restoreTry(s *TryState) *attempt {
	c.evictor.underway++
	a := &attempt{attemptRecord: s.attemptRecord, pod: c.mirror.pods[s.Pod], found: restoreDevices(s.Found)}
	if a.pod != nil {
		a.pod.attempt = a
	}
	a.also = rules.Mapped(rules.Pointers(s.Also), c.restoreTry)
	return a
}

// saveState returns the known state of devices as plain data.
func (d *devices) saveState() (s DevicesState) {
	byName := func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
	// Objects are sorted by name, so that equal states have the same encoding.
	for _, name := range slices.SortedFunc(maps.Keys(d.claims), byName) {
		s.Claims = append(s.Claims, *d.claims[name])
	}

	for _, name := range slices.Sorted(maps.Keys(d.slices)) {
		of := d.slices[name]
		held := rules.Mapped(of.Devices, func(d SliceDevice) []Held { return slices.Clone(of.held[d.Name]) })
		s.Slices = append(s.Slices, SliceState{Slice: of.Slice, List: of.list, Held: held})
	}

	s.Rules = rules.Mapped(d.sorted, func(r *rule) RuleState { return r.RuleState })
	return s
}

// restoreDevices is the counterpart of saveState. The pods evicted by a rule are not saved, because
// they follow from the rest.
func restoreDevices(s DevicesState) devices {
	d := newDevices()
	for _, claim := range s.Claims {
		d.setClaim(&claim)
	}

	for i := range s.Slices {
		saved := &s.Slices[i]
		of := &slice{Slice: saved.Slice, list: saved.List, held: map[string][]Held{}}
		// saved.Held is parallel to Devices.
		for j, held := range saved.Held {
			of.held[of.Devices[j].Name] = held
		}
		d.setSlice(of)
	}

	for i := range s.Rules {
		d.setRule(&rule{RuleState: s.Rules[i], pods: map[*pod]bool{}})
	}
	return d
}

// saveDevices adds the Core's device state to its saved state.
func (c *Core) saveDevices(s *Knowledge) {
	s.Devices, s.Lists = c.devices.seen.saveState(), c.devices.lists
	for _, ticket := range slices.Sorted(maps.Keys(c.statuses.written)) {
		r := c.statuses.written[ticket]
		saved := StatusWriteState{Ticket: ticket}
		if c.devices.seen.rules[r.Name] == r {
			saved.Rule = r.Name
		}
		s.Telling = append(s.Telling, saved)
	}
}

// restoreDevices is the counterpart of saveDevices. Deadlines are recomputed from the state.
func (c *Core) restoreDevices(s *Knowledge) {
	c.devices.seen, c.devices.lists = restoreDevices(s.Devices), s.Lists
	for _, p := range c.mirror.pods {
		// judgePod also sets byNode and byDevice, which are not saved.
		p.asked = c.judgePod(p)
		for _, name := range p.asked {
			c.devices.seen.rules[name].pods[p] = true
		}
	}
	// A rule deleted since the write is represented by an empty rule, on which the response has no
	// effect.
	for _, saved := range s.Telling {
		r := cmp.Or(c.devices.seen.rules[saved.Rule], &rule{})
		r.statusInFlight = true
		c.statuses.written[saved.Ticket] = r
	}
}
