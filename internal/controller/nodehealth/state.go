// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
)

// Knowledge is the whole state of a Core as plain data: a Core restored from it reacts to every
// event exactly like the saved one. It shares nothing with the running Core.
//
// Journals store Knowledge as JSON, so its field names are part of their format. The meaning of a
// field is documented at the corresponding field of Core, node, zone or bucket.
type Knowledge struct {
	// Nodes holds the existing nodes by name, followed by deleted nodes that are still queued or
	// have a write in flight. Other fields refer to a node by its number, which is an index into
	// Nodes.
	Nodes  []NodeState
	Zones  []ZoneState      // by name
	Leases map[string]lease // by node, including unknown nodes
	Dirty  []int            // Core.dirty, as numbers of nodes
	Asked  []AskedState     // requests in flight, by ticket
	// Suspects holds the nodes waiting for a read of their Lease, and Reading the nodes with a read
	// in flight, as numbers of nodes.
	Suspects []int                   `json:",omitempty"`
	Reading  map[response.Ticket]int `json:",omitempty"`
	coreRecord
}

// NodeState is a node and its health.
type NodeState struct {
	nodeRecord
	In *string // name of its zone; nil: no pass has included the node
}

// ZoneState is a zone and its queues.
type ZoneState struct {
	zoneRecord
	ToTaint, ToMark []int // numbers of the waiting nodes, in the order of the queues
}

// AskedState is a write in flight.
type AskedState struct {
	Ticket         response.Ticket
	Node           int // number of the node
	Marks, Stopped bool
	Status         bool `json:",omitempty"` // it is a WriteStatus
}

// Save returns the Core's state. Nodes are numbered, because a deleted node may still be in a queue
// when another node has its name.
func (c *Core) Save() Knowledge {
	s := Knowledge{Leases: maps.Clone(c.leases), coreRecord: c.record}

	// The existing nodes are numbered first, by name, followed by deleted nodes found in a queue or
	// a request.
	places := map[*node]int{}
	place := func(n *node) int {
		at, ok := places[n]
		if !ok {
			at = len(s.Nodes)
			places[n] = at
			s.Nodes = append(s.Nodes, saveNode(n))
		}
		return at
	}

	line := func(nodes []*node) []int { return rules.Mapped(nodes, place) }

	for _, n := range c.sortedNodes() {
		place(n)
	}
	for _, z := range c.sortedZones() {
		s.Zones = append(s.Zones, ZoneState{zoneRecord: z.zoneRecord, ToTaint: line(z.toTaint), ToMark: line(z.toMark)})
	}

	s.Dirty, s.Suspects = line(c.dirty), line(c.suspects)
	for _, ticket := range slices.Sorted(maps.Keys(c.reading)) {
		if s.Reading == nil {
			s.Reading = map[response.Ticket]int{}
		}
		s.Reading[ticket] = place(c.reading[ticket])
	}

	for _, ticket := range slices.Sorted(maps.Keys(c.asked)) {
		s.Asked = append(s.Asked, AskedState{Ticket: ticket, Node: place(c.asked[ticket].node),
			Marks: c.asked[ticket].marks, Stopped: c.asked[ticket].stopped, Status: c.asked[ticket].pace == &c.asked[ticket].node.Status})
	}
	return s
}

// saveNode returns the node's own state, without its membership in queues.
func saveNode(n *node) NodeState {
	s := NodeState{nodeRecord: n.nodeRecord}
	if n.zone != nil {
		s.In = new(n.zone.Name)
	}
	return s
}

// Restore returns a Core with a saved state. It returns an error if the number of a node is
// invalid, since the state may originate from a file.
func Restore(options Options, s Knowledge) (*Core, error) {
	c := New(options)
	if err := s.checkIndices(); err != nil {
		return nil, err
	}

	c.record = s.coreRecord
	for i := range s.Zones {
		c.zones[s.Zones[i].Name] = &zone{zoneRecord: s.Zones[i].zoneRecord}
	}

	// Nodes are restored before queues, which refer to them by number.
	nodes := make([]*node, len(s.Nodes))
	for i := range s.Nodes {
		nodes[i] = c.restoreNode(&s.Nodes[i])
		if !nodes[i].Gone {
			c.nodes[nodes[i].Name] = nodes[i]
		}
	}

	line := func(places []int) []*node { return rules.Mapped(places, func(at int) *node { return nodes[at] }) }

	for i := range s.Zones {
		z := c.zones[s.Zones[i].Name]
		z.toTaint, z.toMark = line(s.Zones[i].ToTaint), line(s.Zones[i].ToMark)
	}

	maps.Copy(c.leases, s.Leases)
	c.dirty, c.suspects = line(s.Dirty), line(s.Suspects)
	// node.asked is set while a read of the Lease is pending or in flight.
	for _, n := range c.suspects {
		n.asked = true
	}

	for ticket, at := range s.Reading {
		c.reading[ticket], nodes[at].asked = nodes[at], true
	}
	for _, asked := range s.Asked {
		n := nodes[asked.Node]
		of := &n.Spec
		switch {
		case asked.Marks:
			of = &n.Pods
		case asked.Status:
			of = &n.Status
		}
		c.asked[asked.Ticket] = request{node: n, pace: of, marks: asked.Marks, stopped: asked.Stopped}
		if asked.Marks {
			c.marking++
			nodes[asked.Node].marking = true
		}
	}

	return c, nil
}

// checkIndices returns an error if a number of a node is not an index into Nodes.
func (s *Knowledge) checkIndices() error {
	all := slices.Concat(s.Dirty, s.Suspects, slices.Collect(maps.Values(s.Reading)))
	for i := range s.Zones {
		all = append(append(all, s.Zones[i].ToTaint...), s.Zones[i].ToMark...)
	}
	for _, asked := range s.Asked {
		all = append(all, asked.Node)
	}
	if i := slices.IndexFunc(all, func(at int) bool { return at < 0 || at >= len(s.Nodes) }); i >= 0 {
		return fmt.Errorf("there is no node number %d among %d", all[i], len(s.Nodes))
	}
	return nil
}

// restoreNode is the counterpart of saveNode. The zones must have been restored.
func (c *Core) restoreNode(s *NodeState) *node {
	n := &node{nodeRecord: s.nodeRecord}
	if s.In != nil {
		if n.zone = c.zones[*s.In]; n.zone == nil {
			n.zone = &zone{zoneRecord: zoneRecord{Name: *s.In}} // the zone was removed, and only this node refers to it
		}
	}
	return n
}
