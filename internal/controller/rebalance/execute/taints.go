// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
)

// Values of the taint berth.dev/emptying.
const (
	valueEmpty = "empty" // the node is being emptied, and stays closed
	valueRoom  = "room"  // the node is closed until it has room for a pending pod
)

// taintOf returns the value of Berth's taint on a node, or "".
func taintOf(n *v1.Node) string {
	if t := rules.Find(n.Spec.Taints, func(t *v1.Taint) bool { return t.Key == rebalance.EmptyingTaint }); t != nil {
		return t.Value
	}
	return ""
}

// closed returns the nodes to close for the first move of a plan, with the value of their taint;
// without a move, it returns the empty nodes. Nodes of later moves stay open until their moves are
// made.
func closed(plan *rebalance.Plan) map[string]string {
	nodes := map[string]string{}
	if len(plan.Moves) == 0 {
		for _, name := range plan.Empties {
			nodes[name] = valueEmpty
		}
		return nodes
	}
	m := &plan.Moves[0]
	for _, name := range m.Closed {
		nodes[name] = valueEmpty
	}
	if m.Closes == rebalance.MakingRoom {
		nodes[m.From] = valueRoom
	}
	return nodes
}

// close writes the taints wanted by a plan, and removes unwanted taints of earlier plans. Emptied
// nodes keep their taints. The taints are written before the first move that requires them, so that
// no successor lands on a node about to be emptied.
func (c *Core) close(wanted map[string]string) {
	c.enter(tainting)
	c.closes = len(wanted) > 0
	holding := c.cluster.holding()
	for _, n := range c.cluster.nodes() {
		want := wanted[n.Name]
		has, unseen := c.written[n.Name]
		if !unseen {
			has = taintOf(n)
		}
		switch {
		// A node with an unobserved write is written again, because that write may have failed.
		// Values not written by Berth stay.
		case has == want && (want == "" || !unseen), has != "" && has != valueEmpty && has != valueRoom: // not Berth's
			continue
		// An emptied node keeps its taint. Without the journal, only nodes closed by this run are
		// opened: the rest belong to another process.
		case want == "" && has == valueEmpty && !holding[n.Name], want == "" && !c.journal.recalled && !c.closed[n.Name]:
			continue
		}
		c.closed[n.Name] = want != ""
		taint := SetTaint{Ticket: c.nextTicket(), Node: n.Name, Value: want}
		c.waiting[taint.Ticket] = taint
		c.written[n.Name] = want
		c.addAction(taint)
	}
	c.closedAll()
}

// closedAll continues once all taints are written. An ending run opens the nodes it has just
// closed. closedAll is called after each response, and does nothing until the last one has arrived.
func (c *Core) closedAll() {
	switch ends := c.run.stopped != "" || c.stopping; {
	case len(c.waiting) > 0:
	case ends && c.closes:
		c.close(nil)
	case ends || len(c.plan.Moves) == 0:
		c.end()
	default:
		c.start(&c.plan.Moves[0])
	}
}

// answered handles the response to one of the Core's own requests: a taint, or the journal.
func (c *Core) answered(e Answered) {
	if taint, ok := c.waiting[e.Ticket]; ok {
		delete(c.waiting, e.Ticket)
		// The taint was definitely not written, or does not matter. Otherwise it stays in
		// c.written, because it may have been written.
		if e.Outcome == response.Refused || e.Outcome != response.OK && taint.Value == "" {
			delete(c.written, taint.Node)
		}
		// A node that cannot be opened keeps its taint, and the next run retries. A node that
		// cannot be closed invalidates the proof.
		if e.Outcome != response.OK && e.Outcome != response.Gone && taint.Value != "" && c.run.stopped == "" {
			c.run.stopped = fmt.Sprintf("node %s cannot be tainted: %s", taint.Node, e.Message)
		}
		c.closedAll()
		return
	}

	if e.Ticket == c.journal.write && (c.phase == noting || c.phase == ending) {
		c.noted(e)
	}
}
