package nodehealth

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

const (
	// A failed write is tried again after firstRetry, then after twice as long each time, up to
	// lastRetry.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// touchNode queues the node for a check whether something has to be written.
func (c *Core) touchNode(n *node) {
	if !n.queued {
		n.queued = true
		c.dirty = append(c.dirty, n)
	}
}

// sendWrites sends what has to be written, one write at a time per node, in the order in which
// nodes came up. What to write is decided here, at the last moment, from the newest state; a node
// in dirty only may need a write. It stays there until nothing is left to write.
func (c *Core) sendWrites(now time.Time) {
	var left []*node
	for i, n := range c.dirty {
		if len(c.asked) >= c.options.InFlight {
			left = append(left, c.dirty[i:]...)
			break
		}
		if n.gone {
			n.queued = false
			continue
		}
		// It stays in the line: Wake tells when.
		if n.writing || now.Before(n.notYet) {
			left = append(left, n)
			continue
		}
		action := c.nextWrite(now, n)
		if action == nil && !n.mark && !n.marking {
			n.queued, n.tries = false, 0
			continue
		}
		if action != nil {
			// Marking pods takes long, and must not keep the node itself from being written.
			_, marks := action.(MarkPods)
			n.writing = !marks
			c.addAction(action)
		}
		left = append(left, n)
	}

	c.dirty = left
}

// nextWrite returns the node's next write, nil if there is none now. The condition comes before
// what follows from it. Pods come last: they take long, so half of InFlight is reserved for
// conditions and taints, and the node itself is written meanwhile. It issues the ticket of what it
// returns, so the caller must send it.
func (c *Core) nextWrite(now time.Time, n *node) Action {
	if n.silent {
		if conditions := n.unknownConditions(c.wallTime(now)); conditions != nil {
			return WriteStatus{Ticket: c.issueTicket(n), Node: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
				Conditions: conditions}
		}
	}
	taints, differs := n.taintsFor(c.wallTime(now), n.evict && n.effectiveStatus() != v1.ConditionTrue && !c.allDown)
	labels := n.mirroredLabels()
	if differs || len(labels) > 0 {
		return WriteNode{
			Ticket: c.issueTicket(n), Node: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			SetTaints: differs, Taints: taints, Labels: labels,
		}
	}
	if n.effectiveStatus() == v1.ConditionTrue {
		n.mark = false // it is back since that was decided
	}
	if n.mark && !n.marking && c.marking < max(1, c.options.InFlight/2) {
		n.mark, n.marking = false, true
		c.marking++
		ticket := c.issueTicket(n)
		c.asked[ticket] = request{node: n, marks: true}
		return MarkPods{Ticket: ticket, Node: n.Name}
	}
	return nil
}

// stopMarking ends the marking of the pods of a node that is back.
func (c *Core) stopMarking(n *node) {
	if !n.marking || n.effectiveStatus() != v1.ConditionTrue {
		return
	}
	for ticket, asked := range c.asked {
		if asked.node == n && asked.marks && !asked.stopped {
			asked.stopped = true
			c.asked[ticket] = asked
			c.addAction(StopMarking{Ticket: ticket, Node: n.Name})
		}
	}
}

// issueTicket returns a ticket for a request about the node.
func (c *Core) issueTicket(n *node) Ticket {
	c.tickets++
	c.asked[c.tickets] = request{node: n}
	return c.tickets
}

// routeAnswer takes in the answer to a request. The node as it is now, if the answer has it, is
// applied like one that a watch shows: the next write is based on it, and does not wait for the
// watch.
func (c *Core) routeAnswer(now time.Time, answer Answered) {
	if n, ok := c.reading[answer.Ticket]; ok {
		delete(c.reading, answer.Ticket)
		c.leaseRead(now, n, answer)
		return
	}
	asked, ok := c.asked[answer.Ticket]
	delete(c.asked, answer.Ticket)
	if !ok {
		return
	}
	n := asked.node
	if asked.marks {
		c.marking--
		n.marking = false
	} else {
		n.writing, n.notYet = false, time.Time{}
	}
	if n.gone {
		return
	}
	if answer.Outcome == Gone || answer.Node != nil && answer.Node.UID != n.UID {
		n.notYet = now.Add(lastRetry) // the watch will say so
		return
	}
	if answer.Node != nil {
		c.nodeSeen(now, *answer.Node)
	}
	if answer.Outcome == Failed || answer.Outcome == Stale && answer.Node == nil {
		// A marking that failed is begun again; one that was stopped is not wanted any more, which
		// nextWrite finds out.
		n.mark = n.mark || asked.marks
		n.tries++
		n.notYet = now.Add(min(firstRetry<<min(n.tries-1, 10), lastRetry))
	}
}
