// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// endTurn uncordons the nodes of the turn, except for nodes cordoned before the roll, and notes
// that they are done. If a node was replaced, the replacement gets the note, including the name of
// its predecessor.
func (r *Roller) endTurn() {
	r.stage, r.wanted = turnEnding, map[string]SetNode{}
	for _, name := range r.turn.Nodes {
		if _, existed := r.uids[name]; !existed {
			continue
		}
		if r.exchanges() {
			r.endRemoval(name)
			continue
		}
		done := RollNote{State: rollDone}
		node, message := name, "open again"

		switch came := r.came[name]; {
		case r.cluster.node(name) == nil:
			node, done.Instead = came, name
			message = fmt.Sprintf("replaced by %s", came)
		case r.closed[name]:
			message = "stays cordoned, as it was before"
		}

		// If a deleted node has no replacement, as with UntilDrained, no node gets its note.
		if node != "" {
			r.want(node, r.closed[node], done)
		}
		r.addAction(RollProgress{Result: Arrived, Node: name, Message: message})
	}
}

// next plans the next turn, if there is one, or the whole roll if no turn has begun.
func (r *Roller) next() {
	r.tries, r.draining = 0, time.Time{}
	if r.turn == nil {
		r.ask(rollPlanning)
		return
	}
	r.ask(turnPlanning)
}

// stop ends the roll; why is the cause of an interruption, or "". It reopens nodes awaiting their
// turn, and removes their notes: another run treats these nodes like any node without a note.
//
// It may be called more than once: the first reason counts. With DryRun no nodes were closed, so
// none are reopened.
func (r *Roller) stop(why string) {
	if r.stage == rollReopening || r.stage == rollOver {
		return
	}
	r.rolled = r.done()
	r.stage, r.stopped, r.wanted = rollReopening, why, map[string]SetNode{}
	if r.options.DryRun {
		return
	}
	for _, n := range r.noted() {
		// An exchange that deviates from its plan is abandoned: the next one has a new plan.
		if r.isIn(n, rollNext) || r.exchanges() && why != interrupted {
			r.wanted[n.Name] = SetNode{Node: n.Name, Cordoned: r.closed[n.Name] || r.isIn(n, rollDone)}
		}
	}
}

// noted returns the nodes with a note that are selected now or were selected when this run began,
// because labels may change during a roll.
func (r *Roller) noted() []*v1.Node {
	return slices.DeleteFunc(r.cluster.nodes(), func(n *v1.Node) bool {
		_, noted := r.noteOf(n)
		_, known := r.closed[n.Name]
		return !noted || !known && !r.selects(n)
	})
}

// clear removes the notes of a complete roll. It first sets the note of one node to complete, and
// removes this note last, so that a run that finds only some of the notes does not roll the other
// nodes again.
func (r *Roller) clear() {
	r.wanted = map[string]SetNode{}
	noted, complete := r.noted(), ""
	for _, n := range noted {
		if note, _ := r.noteOf(n); note.State == rollComplete {
			complete = n.Name
		}
	}

	switch {
	case len(noted) == 0:
		r.end()
	case complete == "":
		r.closed[noted[0].Name] = noted[0].Spec.Unschedulable
		r.want(noted[0].Name, noted[0].Spec.Unschedulable, RollNote{State: rollComplete})
	default:
		for _, n := range noted {
			if n.Name != complete || len(noted) == 1 {
				r.wanted[n.Name] = SetNode{Node: n.Name, Cordoned: n.Spec.Unschedulable}
			}
		}
	}
}

// end reports the result of the roll. The nodes of the turn keep their notes, which another run
// needs to continue.
func (r *Roller) end() {
	r.stage = rollOver
	var turn []string
	for _, n := range r.nodes() {
		if r.isIn(n, rollTurn) {
			turn = append(turn, n.Name)
		}
	}
	r.addAction(RollDone{Done: r.rolled, Nodes: r.total, Evicted: r.evicted, Turn: turn, Stopped: r.stopped})
}

// overdue reports whether the stage has lasted for the given time. An ending roll no longer waits
// then to observe its writes to nodes: the next run repairs any leftovers.
func (r *Roller) overdue(limit time.Duration) bool {
	if until := r.entered.Add(limit); r.now.Before(until) {
		r.wake(until)
		return false
	}
	return true
}
