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

	"github.com/berth-k8s/berth/internal/pacing"
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

// ClaimState is a claim.
type ClaimState struct {
	Claim
	List uint32
}

// SliceState is a slice with the starts of its devices' taints.
type SliceState struct {
	Slice
	List uint32
	Held [][]HeldState // parallel to Slice.Devices
}

// RuleState is a rule.
type RuleState struct {
	Rule
	List    uint32
	Held    HeldState
	Evicted int
	TellAt  time.Time // time of the next status check; zero: none before the next event
	Tries   int
}

// StatusWriteState is a write of a status in flight.
type StatusWriteState struct {
	Ticket response.Ticket
	Rule   string // "": deleted since
}

// NodeState is a node with the UIDs of its pods.
type NodeState struct {
	Name      string
	Pods      []types.UID // in the order of node.pods
	Known     bool
	UID       types.UID
	Version   string
	List      uint32
	Held      []HeldState
	Witness   time.Time // node.taintsWritten
	Note      string
	Noting    bool
	NoteTries int
	NoteAt    time.Time
	Reads     pacing.Pace `json:",omitzero"` // node.reads
}

// HeldState is a Held with its unexported fields.
type HeldState struct {
	Held
	Written, Said, SaidTurned time.Time
}

// PodState is a pod bound to a node.
type PodState struct {
	Pod
	On       string // the node's name
	List     uint32
	Begun    time.Time // pod.bound
	Due      Due       // the earlier of byNode and byDevice, which Restore recomputes
	Number   uint64
	Tries    int
	NotYet   time.Time
	Device   bool `json:",omitempty"` // pod.device
	Recorded bool // pod.marked
	Cancels  bool // pod.cancels
	Accepted bool // pod.accepted
}

// TryState is an attempt to evict a pod.
type TryState struct {
	Ticket  response.Ticket
	Pod     types.UID  // "": deleted since
	Step    int        // the awaited response; see step
	Also    []TryState // attempts that wait for the same response, and have no ticket
	Evicts  bool
	ReadAt  time.Time
	Rereads int
	Held    []HeldState
	Found   DevicesState `json:",omitzero"`
	Seeks   bool         `json:",omitempty"`
	Rules   []string     `json:",omitempty"`
	Live    Pod          // attempt.live
	Unread  bool
	Asked   bool
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
		saved := NodeState{
			Name: n.name, Known: n.known, UID: n.uid, Version: n.version, List: n.list, Held: saveHeld(n.held), Witness: n.taintsWritten,
			Note: n.note, Noting: n.noting, NoteTries: n.noteTries, NoteAt: n.noteAt, Reads: n.reads,
		}
		for _, p := range n.pods {
			saved.Pods = append(saved.Pods, p.UID)
		}
		s.Nodes = append(s.Nodes, saved)
	}

	for _, p := range c.mirror.pods {
		s.Pods = append(s.Pods, PodState{
			Pod: p.Pod, On: p.node.name, List: p.list, Begun: p.bound, Due: p.due, Number: p.number, Tries: p.tries, NotYet: p.notYet,
			Device: p.device, Recorded: p.marked, Cancels: p.cancels, Accepted: p.accepted,
		})
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
		if n := c.notes.written[ticket]; c.mirror.nodes[n.name] == n {
			saved.Node = n.name
		}
		s.Notes = append(s.Notes, saved)
	}

	for _, n := range c.notes.late {
		s.Unnoted = append(s.Unnoted, n.name)
	}
	c.saveDevices(&s)
	return s
}

// saveTry saves an attempt together with the attempts waiting for the same read.
func saveTry(ticket response.Ticket, a *attempt) TryState {
	saved := TryState{
		Ticket: ticket, Step: int(a.step), Evicts: a.evicts, ReadAt: a.readAt, Rereads: a.rereads, Held: saveHeld(a.held),
		Found: a.found.saveState(), Seeks: a.seeks, Rules: a.rules, Live: a.live, Unread: a.unread, Asked: a.asked,
	}
	if a.pod != nil {
		saved.Pod = a.pod.UID
	}
	for _, other := range a.also {
		saved.Also = append(saved.Also, saveTry(0, other))
	}
	return saved
}

// saveHeld and restoreHeld convert the taints of a node or a device.
func saveHeld(held []Held) (saved []HeldState) {
	for _, h := range held {
		saved = append(saved, HeldState{Held: h, Written: h.written, Said: h.reported, SaidTurned: h.reportedTurned})
	}
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
		c.mirror.nodes[n.Name] = &node{
			name: n.Name, known: n.Known, uid: n.UID, version: n.Version, list: n.List, held: restoreHeld(n.Held), taintsWritten: n.Witness,
			note: n.Note, noting: n.Noting, noteTries: n.NoteTries, noteAt: n.NoteAt, reads: n.Reads,
		}
	}

	for i := range s.Pods {
		p := &s.Pods[i]
		restored := &pod{
			Pod: p.Pod, node: c.mirror.nodeNamed(p.On), list: p.List, bound: p.Begun, number: p.Number, tries: p.Tries, notYet: p.NotYet,
			marked: p.Recorded, cancels: p.Cancels, accepted: p.Accepted, place: -1,
		}
		c.deadlines.setDue(restored, p.Due)
		// setDue sets device for a due pod. For a pod without a deadline, device keeps its last
		// value.
		restored.device = p.Device
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

	for _, name := range s.Unnoted {
		c.notes.late = append(c.notes.late, c.mirror.nodeNamed(name))
	}
	return c
}

// restoreTry is the counterpart of saveTry. If the pod was deleted during the attempt, the attempt
// has no pod, but still waits for its response.
func (c *Core) restoreTry(s *TryState) *attempt {
	c.evictor.underway++
	a := &attempt{
		pod: c.mirror.pods[s.Pod], step: step(s.Step), evicts: s.Evicts, readAt: s.ReadAt, rereads: s.Rereads, held: restoreHeld(s.Held),
		found: restoreDevices(s.Found), seeks: s.Seeks, rules: s.Rules, live: s.Live, unread: s.Unread, asked: s.Asked,
	}
	if a.pod != nil {
		a.pod.attempt = a
	}
	for i := range s.Also {
		a.also = append(a.also, c.restoreTry(&s.Also[i]))
	}
	return a
}

func restoreHeld(saved []HeldState) (held []Held) {
	for _, s := range saved {
		s.Held.written, s.reported, s.reportedTurned = s.Written, s.Said, s.SaidTurned
		held = append(held, s.Held)
	}
	return held
}

// saveState returns the known state of devices as plain data.
func (d *devices) saveState() (s DevicesState) {
	byName := func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
	// Objects are sorted by name, so that equal states have the same encoding.
	for _, name := range slices.SortedFunc(maps.Keys(d.claims), byName) {
		s.Claims = append(s.Claims, ClaimState{d.claims[name].Claim, d.claims[name].list})
	}

	for _, name := range slices.Sorted(maps.Keys(d.slices)) {
		of := d.slices[name]
		saved := SliceState{Slice: of.Slice, List: of.list}
		for i := range of.Devices {
			saved.Held = append(saved.Held, saveHeld(of.held[of.Devices[i].Name]))
		}
		s.Slices = append(s.Slices, saved)
	}

	for _, r := range d.sorted {
		s.Rules = append(s.Rules, RuleState{
			Rule: r.Rule, List: r.list, Held: saveHeld([]Held{r.held})[0], Evicted: r.evicted, TellAt: r.statusDue, Tries: r.tries,
		})
	}
	return s
}

// restoreDevices is the counterpart of saveState. The pods evicted by a rule are not saved, because
// they follow from the rest.
func restoreDevices(s DevicesState) devices {
	d := newDevices()
	for i := range s.Claims {
		d.setClaim(&claim{s.Claims[i].Claim, s.Claims[i].List})
	}

	for i := range s.Slices {
		saved := &s.Slices[i]
		of := &slice{Slice: saved.Slice, list: saved.List, held: map[string][]Held{}}
		// saved.Held is parallel to Devices.
		for j, held := range saved.Held {
			of.held[of.Devices[j].Name] = restoreHeld(held)
		}
		d.setSlice(of)
	}

	for i := range s.Rules {
		saved := &s.Rules[i]
		d.setRule(&rule{
			Rule: saved.Rule, list: saved.List, held: restoreHeld([]HeldState{saved.Held})[0], evicted: saved.Evicted,
			statusDue: saved.TellAt, tries: saved.Tries, pods: map[*pod]bool{},
		})
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
