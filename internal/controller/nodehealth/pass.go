package nodehealth

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// examineNodes examines every node: which are silent, what state each zone is in, and which nodes
// are due for a taint that evicts. It is the counterpart of upstream's monitorNodeHealth, and goes
// by its rules; it writes nothing itself.
//
// For example, in a zone of ten nodes six fall silent. They are counted as not ready, which is 60 %
// and at least three: the zone is partially disrupted (threshold 55 %). With ten nodes it is not
// large, so no more of its nodes get a taint that evicts. If it had 60 nodes of which 36 are
// silent, they would get it at the secondary rate, one in 100 s.
func (c *Core) examineNodes(now time.Time) {
	type count struct{ ready, notReady int }
	counts, waiting := map[string]*count{}, c.waitingNodes()
	for _, n := range c.sortedNodes() {
		met := n.known
		c.assignZone(now, n)
		if met || n.readyStatus() == "" { // what a node reports counts for one pass at least, as upstream
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
		c.enqueueNode(n, waiting[n])
	}
	states := map[*zone]State{}
	for _, z := range c.sortedZones() {
		k := counts[z.name]
		if k == nil {
			delete(c.zones, z.name)
			continue
		}
		z.size, z.unhealthy = k.ready+k.notReady, k.notReady
		states[z] = c.options.stateOf(k.ready, k.notReady)
	}
	c.updateZones(now, states)
}

// assignZone assigns a node to its zone, by its current labels. A node that changes its zone leaves
// the queues of the old one; the pass puts it into the new one's. On the first pass that meets the
// node, an event says so, as upstream.
func (c *Core) assignZone(now time.Time, n *node) {
	z := c.zones[n.Node.Zone]
	if z == nil {
		rate := c.options.EvictionRate
		z = &zone{name: n.Node.Zone, state: Initial, tainting: newBucket(now, rate), marking: newBucket(now, rate)}
		c.zones[z.name] = z
	}
	if n.zone != z {
		marking := n.zone != nil && slices.Contains(n.zone.toMark, n)
		leaveQueues(n)
		n.zone = z
		if marking { // enqueueNode queues it again for the taint only
			z.toMark = append(z.toMark, n)
		}
	}
	if n.known {
		return
	}
	n.known = true
	c.addAction(Record{Node: n.Name, UID: n.UID, Reason: "RegisteredNode", Message: "Node " + n.Name +
		" event: Registered Node " + n.Name + " in Controller"})
	if n.readyStatus() == v1.ConditionUnknown {
		c.toMark(n) // its writer may not have got to the pods
	}
}

// leaveQueues takes the node out of both queues of its zone. It keeps the order of the others.
func leaveQueues(n *node) {
	if n.zone != nil && len(n.zone.toTaint)+len(n.zone.toMark) > 0 {
		is := func(other *node) bool { return other == n }
		n.zone.toTaint = slices.DeleteFunc(n.zone.toTaint, is)
		n.zone.toMark = slices.DeleteFunc(n.zone.toMark, is)
	}
}

// waitingNodes returns the nodes that wait for a taint: one pass over the queues, instead of a
// search in them for every node of the cluster.
func (c *Core) waitingNodes() map[*node]bool {
	nodes := map[*node]bool{}
	for _, z := range c.zones {
		for _, n := range z.toTaint {
			nodes[n] = true
		}
	}
	return nodes
}

// enqueueNode queues a node that is not ready for the taint that evicts. It removes one that is
// ready from the queue, and the taint from it. waited is set if it was queued when the pass began.
func (c *Core) enqueueNode(n *node, waited bool) {
	switch n.effectiveStatus() {
	case v1.ConditionTrue:
		if waited || len(n.zone.toMark) > 0 {
			leaveQueues(n)
		}
		n.evict, n.mark = false, false
		c.touchNode(n)
	case v1.ConditionFalse, v1.ConditionUnknown:
		if !n.evict && !(waited && slices.Contains(n.zone.toTaint, n)) { // it may have changed its zone
			n.zone.toTaint = append(n.zone.toTaint, n)
		}
	}
}

// updateZones updates the states and rates of zones. If every zone is down, it is more likely that
// this controller is cut off than that all nodes have died: the taints that evict are removed
// everywhere and none is added. When that ends, every node has its full grace period again.
func (c *Core) updateZones(now time.Time, states map[*zone]State) {
	counted, allDown := 0, true
	for z, state := range states {
		if z.size > 0 {
			counted++
			allDown = allDown && state == FullDisruption
		}
	}

	if counted == 0 {
		return
	}
	switch {
	case allDown && !c.allDown:
		for _, n := range c.sortedNodes() {
			n.evict = false
			n.zone.toTaint = nil
			c.touchNode(n)
		}
	case !allDown && c.allDown:
		for _, n := range c.nodes {
			// A silent node whose conditions were not written yet gets its grace period anew; one
			// that has been written stays as it is.
			n.sign, n.silent = now, n.silent && n.readyStatus() == v1.ConditionUnknown
		}
	}

	for _, z := range c.sortedZones() {
		state, rate := states[z], c.options.rateOf(states[z], z.size)
		if allDown {
			rate = 0
		}
		if z.state != state || allDown != c.allDown {
			z.tainting.setRate(now, rate)
			z.marking.setRate(now, rate)
			c.addAction(ZoneChanged{Zone: z.name, From: z.state, To: state, Rate: rate})
			z.state = state
		}
	}

	c.allDown = allDown
}

// toMark requests that the node's pods be marked NotReady: at once, as upstream, or when the zone's
// rate allows. Endpoints follow that mark, so it decides when Services stop sending requests to the
// pods.
func (c *Core) toMark(n *node) {
	if !c.options.MarkPodsAtZoneRate {
		n.mark = true
		c.touchNode(n)
		return
	}
	if !slices.Contains(n.zone.toMark, n) {
		n.zone.toMark = append(n.zone.toMark, n)
	}
}

// releaseAll admits as many queued nodes to the taint, and to the marking of their pods, as each
// zone's rate allows.
func (c *Core) releaseAll(now time.Time) {
	for _, z := range c.sortedZones() {
		z.toTaint = c.releaseDue(now, &z.tainting, z.toTaint, func(n *node) {
			n.evict = true
			z.evictions++
		})
		z.toMark = c.releaseDue(now, &z.marking, z.toMark, func(n *node) { n.mark = true })
	}
}

// releaseDue takes nodes from the front of a queue as long as there are tokens, and returns the
// rest. A node that has recovered or is gone is dropped and costs no token.
func (c *Core) releaseDue(now time.Time, b *bucket, line []*node, let func(*node)) []*node {
	for len(line) > 0 {
		if n := line[0]; !n.gone && n.effectiveStatus() != v1.ConditionTrue {
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
