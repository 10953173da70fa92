// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// retries are the delays between identical writes of a node, whatever the responses are.
var retries = pacing.Backoff{First: 200 * time.Millisecond, Last: 5 * time.Second}

// paced spaces writes of one kind to one node. A write different from the previous one is due
// immediately. An identical write is a repetition, because the previous write failed, was reverted,
// or was dropped by a policy or webhook.
type paced struct {
	pacing.Pace
	Last   string // the last write, formatted by String
	Stored bool   // the last write succeeded
}

// isDue reports whether a write may be sent.
func (p *paced) isDue(now time.Time, write string) bool {
	if write != p.Last {
		*p = paced{Last: write}
	}
	return p.Ready(now)
}

// isDropped reports whether the next write is the third identical one although the second one
// succeeded.
func (p *paced) isDropped() bool { return p.Stored && p.Attempts == 2 }

// touchNode queues the node for a check of its pending writes.
func (c *Core) touchNode(n *node) {
	if !n.Queued {
		n.Queued = true
		c.dirty = append(c.dirty, n)
	}
}

// sendWrites sends pending writes, one at a time per node, in order of discovery. The content of a
// write is decided only here, from the newest state; a node in dirty may turn out to need no write.
// A node stays in dirty while writes are pending.
func (c *Core) sendWrites(now time.Time) {
	var left []*node
	for i, n := range c.dirty {
		if len(c.asked) >= c.options.InFlight { // the rest, which may be all nodes, is not copied
			c.dirty = c.dirty[i-len(left):]
			copy(c.dirty, left)
			return
		}
		if n.Gone {
			n.Queued = false
			continue
		}
		// The node stays in dirty. Wake takes notYet into account.
		if n.Writing || now.Before(n.NotYet) {
			left = append(left, n)
			continue
		}
		n.Later = time.Time{}
		action := c.nextWrite(now, n)
		if action == nil && !n.Marks && !n.marking && n.Later.IsZero() {
			n.Queued = false
			continue
		}
		if action != nil {
			// Marking pods is slow and must not delay writes of the node itself.
			_, marks := action.(MarkPods)
			n.Writing = !marks
			c.addAction(action)
		}
		left = append(left, n)
	}

	c.dirty = left
}

// nextWrite returns the node's next write, or nil. The condition precedes the taints derived from
// it, unless it is repeated without effect. Pods are marked last, because this is slow. Meanwhile
// the node itself can be written: half of InFlight is reserved for conditions and taints. The
// caller must send the returned action, because its ticket has been issued.
func (c *Core) nextWrite(now time.Time, n *node) Action {
	if n.Silent {
		if conditions := n.unknownConditions(c.options.Wall.At(now)); conditions != nil {
			a := WriteStatus{Node: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Conditions: conditions}
			if c.mayWrite(now, n, &n.Status, a.String()) {
				a.Ticket = c.issueTicket(n, &n.Status)
				return a
			}
		}
	}

	taints, differs := n.taintsFor(c.options.Wall.At(now), n.Evict && n.effectiveStatus() != v1.ConditionTrue && !c.record.AllDown)
	if labels := n.mirroredLabels(); differs || len(labels) > 0 {
		a := WriteNode{
			Node: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, SetTaints: differs, Taints: taints, Labels: labels,
		}
		if !c.mayWrite(now, n, &n.Spec, a.String()) {
			return nil
		}
		a.Ticket = c.issueTicket(n, &n.Spec)
		return a
	}
	if n.effectiveStatus() == v1.ConditionTrue {
		n.Marks = false // the node has become ready since the decision
	}
	if n.Marks && !n.marking && c.marking < max(1, c.options.InFlight/2) {
		n.Marks, n.marking = false, true
		c.marking++
		n.Pods.Sent(now, retries, n.Name)
		return MarkPods{Ticket: c.issueTicket(n, &n.Pods), Node: n.Name}
	}
	return nil
}

// mayWrite reports whether a write may be sent now. If so, the caller must send it; mayWrite
// records it, and reports it as Dropped if isDropped. Otherwise mayWrite sets n.later.
func (c *Core) mayWrite(now time.Time, n *node, p *paced, write string) bool {
	if !p.isDue(now, write) {
		n.Later = pacing.Sooner(n.Later, p.Next)
		return false
	}
	if p.isDropped() {
		c.addAction(Dropped{Node: n.Name, UID: n.UID, Write: write})
	}
	p.Sent(now, retries, n.Name)
	return true
}

// stopMarking cancels the marking of the node's pods if the node has recovered.
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

// issueTicket returns a ticket for a request about the node, and records the request as in flight.
func (c *Core) issueTicket(n *node, of *paced) response.Ticket {
	c.record.Tickets++
	c.asked[c.record.Tickets] = request{node: n, pace: of, marks: of == &n.Pods}
	return c.record.Tickets
}

// routeAnswer handles the response to a request. A node in the response is applied like a node from
// the watch, so that the next write is based on it.
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
		n.Writing, n.NotYet = false, time.Time{}
	}
	if n.Gone {
		return
	}
	asked.pace.Stored = answer.Outcome == response.OK
	if answer.Outcome == response.Gone && !asked.marks || answer.Node != nil && answer.Node.UID != n.UID {
		n.NotYet = now.Add(retries.Last) // the watch will deliver the deletion or the new node
		return
	}
	if answer.Node != nil {
		c.nodeSeen(now, *answer.Node)
	}
	if answer.Outcome != response.OK && (answer.Outcome != response.Conflict || answer.Node == nil) {
		// A failed marking is repeated. If it was cancelled because the node is ready, nextWrite
		// resets mark.
		n.Marks = n.Marks || asked.marks
		asked.pace.Delay(now.Add(min(answer.RetryAfter, retries.Last)))
		n.NotYet = asked.pace.Next
	}
}
