// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/pacing"
)

// examineNodes examines every node: it determines the silent nodes, the state of each zone, and the
// nodes due for an evicting taint. It corresponds to upstream's monitorNodeHealth and follows the
// same rules, but it sends no writes itself.
//
// For example, in a zone of ten nodes six fall silent. They count as not ready, which is 60 % and
// at least three: the zone is partially disrupted (threshold 55 %). A zone of ten nodes is not
// large, so no further nodes get an evicting taint. In a zone of 60 nodes, 36 silent nodes would
// get the taint at the secondary rate, one every 100 s.
func (c *Core) examineNodes(now time.Time) {
	type count struct{ ready, notReady int }
	// The set of nodes that wait for a taint saves a search of the queues for every node.
	counts, waiting := map[string]*count{}, sets.New[*node]()
	for _, z := range c.zones {
		waiting.Insert(z.toTaint...)
	}
	for _, n := range c.sortedNodes() {
		met := n.Known
		c.assignZone(now, n)
		if met || n.readyStatus() == "" { // like upstream, a node is judged by its reported status in its first pass
			c.judgeSilence(now, n)
		}
		k := counts[n.Zone]
		if k == nil {
			k = &count{}
			counts[n.Zone] = k
		}
		switch {
		case n.Excluded:
		case n.effectiveStatus() == v1.ConditionTrue:
			k.ready++
		default:
			k.notReady++
		}
		c.enqueueNode(n, waiting.Has(n))
	}

	states := map[*zone]State{}
	for _, z := range c.sortedZones() {
		k := counts[z.Name]
		if k == nil {
			delete(c.zones, z.Name)
			c.sorted.zones = nil
			continue
		}
		z.Size, z.Unhealthy = k.ready+k.notReady, k.notReady
		states[z] = c.options.stateOf(k.ready, k.notReady)
	}
	c.updateZones(now, states)
}

// assignZone assigns a node to its zone, by its current labels. If the zone has changed, the node
// leaves the queues of the old zone, and enters the queues of the new zone. Like upstream,
// assignZone emits an event in the first pass that includes the node.
func (c *Core) assignZone(now time.Time, n *node) {
	z := c.zones[n.Node.Zone]
	if z == nil {
		rate := c.options.EvictionRate
		full := newBucket(now, rate)
		z = &zone{zoneRecord: zoneRecord{Name: n.Node.Zone, State: Initial, Tainting: full, Marking: full}}
		c.zones[z.Name], c.sorted.zones = z, nil
	}
	if n.zone != z {
		marking := n.zone != nil && slices.Contains(n.zone.toMark, n)
		leaveQueues(n)
		n.zone = z
		if marking { // enqueueNode queues it again for the taint only
			c.enqueue(&z.toMark, n)
		}
	}

	if n.Known {
		return
	}
	n.Known = true
	c.addAction(Record{Node: n.Name, UID: n.UID, Reason: "RegisteredNode", Message: "Node " + n.Name +
		" event: Registered Node " + n.Name + " in Controller"})
	if n.readyStatus() == v1.ConditionUnknown {
		c.toMark(n) // the pods may not have been marked yet
	}
}

// leaveQueues removes the node from both queues of its zone, preserving their order.
func leaveQueues(n *node) {
	if n.zone != nil && len(n.zone.toTaint)+len(n.zone.toMark) > 0 {
		is := func(other *node) bool { return other == n }
		n.zone.toTaint = slices.DeleteFunc(n.zone.toTaint, is)
		n.zone.toMark = slices.DeleteFunc(n.zone.toMark, is)
	}
}

// enqueueNode queues an unready node for the evicting taint. A ready node leaves the queues, and
// its evicting taint will be removed. waited is set if the node was queued when the pass began.
func (c *Core) enqueueNode(n *node, waited bool) {
	switch n.effectiveStatus() {
	case v1.ConditionTrue:
		if waited || len(n.zone.toMark) > 0 {
			leaveQueues(n)
		}
		// Other pending writes of a ready node were found when its state was seen.
		if n.Evict || n.Marks || len(n.Taints) > 0 {
			n.Evict, n.Marks = false, false
			c.touchNode(n)
		}
	case v1.ConditionFalse, v1.ConditionUnknown:
		if !n.Evict && !(waited && slices.Contains(n.zone.toTaint, n)) { // a node that has changed its zone is no longer queued
			c.enqueue(&n.zone.toTaint, n)
		}
	}
}

// updateZones updates the states and rates of zones. If every zone is down, it is more likely that
// this controller is partitioned than that all nodes have died: evicting taints are removed
// everywhere and none is added. When that ends, the grace periods of all nodes start over.
func (c *Core) updateZones(now time.Time, states map[*zone]State) {
	counted, allDown := 0, true
	for z, state := range states {
		if z.Size > 0 {
			counted++
			allDown = allDown && state == FullDisruption
		}
	}

	if counted == 0 {
		return
	}
	switch {
	case allDown && !c.record.AllDown:
		for _, n := range c.sortedNodes() {
			n.Evict = false
			n.zone.toTaint = nil
			c.touchNode(n)
		}
	case !allDown && c.record.AllDown:
		for _, n := range c.nodes {
			// A silent node without written conditions gets a new grace period; one with written
			// conditions stays silent.
			n.Sign, n.Silent = now, n.Silent && n.readyStatus() == v1.ConditionUnknown
		}
	}

	for _, z := range c.sortedZones() {
		state, rate := states[z], c.options.rateOf(states[z], z.Size)
		if allDown {
			rate = 0
		}
		if z.State != state || allDown != c.record.AllDown {
			z.Tainting.setRate(now, rate)
			z.Marking.setRate(now, rate)
			c.releaseAt = time.Time{}
			c.addAction(ZoneChanged{Zone: z.Name, From: z.State, To: state, Rate: rate})
			z.State = state
		}
	}

	c.record.AllDown = allDown
}

// toMark requests that the node's pods be marked NotReady: immediately, like upstream, or when the
// zone's rate allows. Endpoints follow the Ready condition, so the mark decides when Services stop
// sending requests to the pods.
func (c *Core) toMark(n *node) {
	if !c.options.MarkPodsAtZoneRate {
		n.Marks = true
		c.touchNode(n)
		return
	}
	if !slices.Contains(n.zone.toMark, n) {
		c.enqueue(&n.zone.toMark, n)
	}
}

// enqueue adds a node to a queue of its zone.
func (c *Core) enqueue(line *[]*node, n *node) { *line, c.releaseAt = append(*line, n), time.Time{} }

// releaseAll admits as many queued nodes to the taint, and to the marking of their pods, as each
// zone's rate allows. It examines the zones only when a zone may have a token, because every
// renewal of a Lease is a step.
func (c *Core) releaseAll(now time.Time) {
	if now.Before(c.releaseAt) {
		return
	}
	for _, z := range c.sortedZones() {
		z.toTaint = c.releaseDue(now, &z.Tainting, z.toTaint, func(n *node) {
			n.Evict = true
			z.Evictions++
		})
		z.toMark = c.releaseDue(now, &z.Marking, z.toMark, func(n *node) { n.Marks = true })
	}
	c.releaseAt = c.nextRelease(now)
}

// nextRelease returns the time of the next token of a zone with queued nodes, or of the next check.
func (c *Core) nextRelease(now time.Time) time.Time {
	at := now.Add(furthest)
	for _, z := range c.zones {
		if next, ok := z.Tainting.nextToken(now); ok && len(z.toTaint) > 0 {
			at = pacing.Earlier(at, next)
		}
		if next, ok := z.Marking.nextToken(now); ok && len(z.toMark) > 0 {
			at = pacing.Earlier(at, next)
		}
	}
	return at
}

// releaseDue takes nodes from the front of a queue as long as there are tokens, and returns the
// rest. Recovered or deleted nodes are dropped and cost no token.
func (c *Core) releaseDue(now time.Time, b *bucket, line []*node, let func(*node)) []*node {
	for len(line) > 0 {
		if n := line[0]; !n.Gone && n.effectiveStatus() != v1.ConditionTrue {
			if !b.takeToken(now) {
				break
			}
			let(n)
			c.touchNode(n)
		}
		line = line[1:]
	}
	return line
}
