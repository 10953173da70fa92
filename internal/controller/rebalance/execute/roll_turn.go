// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
)

// Bounds of a roll.
const (
	mostTries    = 5                // consecutive repeated plans of a turn with stranded pods
	untaintedFor = 30 * time.Second // limit for the removal of the unschedulable taint from an uncordoned node
)

// begin begins a turn: it cordons the nodes of the turn and of later turns, and writes their notes.
//
// The stages of a turn, and the resulting state of the nodes:
//
//	turnClosing    turn's nodes: cordoned, "turn"; later ones: cordoned, "next"
//	turnOpening    some later ones: open, "next"
//	turnEnding     turn's nodes: open, "done"
//	rollReopening  later ones: open, "next"
//
// These notes are sufficient for a new process to continue, whenever the previous one was killed.
func (r *Roller) begin(turn *rebalance.Turn) {
	r.turn, r.wanted, r.stage, r.held = turn, map[string]SetNode{}, turnClosing, time.Time{}
	r.uids, r.before = map[string]types.UID{}, map[string]string{}
	for _, name := range turn.Nodes {
		n := r.cluster.node(name)
		if n == nil {
			continue
		}
		before := beforeOf(n)
		// The node's turn had already begun, in an earlier process or before a replan. The node may
		// have restarted since, so its original fingerprint is read from the note.
		if note, ok := r.noteOf(n); ok && r.isIn(n, rollTurn) {
			before = note.Before
		} else {
			r.addAction(RollProgress{Result: Cordoned, Node: name,
				Message: fmt.Sprintf("its turn begins, %d of %d nodes are done", r.done(), r.total)})
		}
		r.uids[name], r.before[name] = n.UID, before
		if !r.exchanges() {
			r.want(name, true, RollNote{State: rollTurn, Before: before, Next: turn.Next})
		}
	}

	for _, name := range turn.Closes {
		r.want(name, true, RollNote{State: rollNext})
	}
}

// done counts the rolled nodes.
func (r *Roller) done() int {
	return r.removed + rules.Count(slices.Values(r.nodes()), func(n *v1.Node) bool { return r.isIn(n, rollDone) })
}

// want records a node's desired state; settled issues the requests.
func (r *Roller) want(node string, cordoned bool, note RollNote) {
	note.Begun, note.Cordoned, note.Remove = r.begun, r.closed[node], r.exchanges()
	text, err := json.Marshal(note)
	if err != nil {
		panic(err) // a struct of strings
	}
	r.wanted[node] = SetNode{Node: node, Cordoned: cordoned, Note: string(text)}
}

// settled writes the desired state of nodes, and reports whether all existing nodes have been
// observed in that state. It runs on each step of a stage that waits for nodes. An acknowledged but
// unobserved write is repeated after firstPause; the repetition is a no-op if only the watch event
// is late.
func (r *Roller) settled() bool {
	settled := true
	for _, n := range r.cluster.nodes() {
		want, ok := r.wanted[n.Name]
		if !ok {
			continue
		}
		write := r.writes[n.Name]
		if write == nil {
			write = &attempt{}
			r.writes[n.Name] = write
		}
		if want.IsMet(n) {
			*write = attempt{ticket: write.ticket}
			settled = settled && !r.closes(n)
			continue
		}
		settled = false
		switch {
		case write.ticket != 0:
		case r.now.Before(write.retry):
			r.wake(write.retry)
		default:
			write.ticket = r.nextTicket()
			want.Ticket = write.ticket
			r.addAction(want)
		}
	}

	return settled
}

// closes reports whether an uncordoned node still has the unschedulable taint.
// kube-controller-manager's node controller removes the taint shortly after spec.unschedulable
// changes. Until then, plans cannot use the node. After untaintedFor the roll continues regardless:
// if that controller is down, the node is of little use, but the roll must not block.
func (r *Roller) closes(n *v1.Node) bool {
	until := r.entered.Add(untaintedFor)
	if n.Spec.Unschedulable || !r.now.Before(until) {
		return false
	}
	tainted := slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeUnschedulable })
	if tainted {
		r.wake(until)
	}
	return tainted
}

// answered handles the response to a node write. A refused write stops the roll: without notes,
// another process could not continue it.
func (r *Roller) answered(e Answered) {
	r.claimAnswered(e)
	for name, write := range r.writes {
		switch {
		case write.ticket != e.Ticket:
		// The write is repeated at increasing intervals until its effect is observed.
		case e.Outcome == response.OK:
			write.again(r.now, 0)
		case e.Outcome == response.Refused:
			write.again(r.now, 0)
			delete(r.wanted, name)
			r.stop(fmt.Sprintf("node %s cannot be updated: %s", name, e.Message))
		default:
			write.again(r.now, e.RetryAfter)
		}
	}
}

// empty begins the drain of the turn's nodes. If the turn uncordons further nodes afterwards, pods
// that fit on no other node stay until then.
func (r *Roller) empty(stage rollStage) {
	r.stage = stage
	options := r.options.DrainOptions
	options.Nodes = slices.DeleteFunc(slices.Clone(r.turn.Nodes), func(name string) bool { return r.cluster.node(name) == nil })
	options.Fitting = stage == turnEmptying && len(r.turn.Opens) > 0
	// The timeout applies to the turn, which may drain more than once.
	if r.draining.IsZero() {
		r.draining = r.now
	}
	r.beginDrain(options, r.draining)
}

// drained handles the end of a drain.
//
// If the drain stopped because pods of its plan do not fit on any node, the turn is replanned, up
// to mostTries times without an eviction and within the timeout: the cluster has changed since the
// roll was planned, and room may become available. Any other cause stops the roll and leaves the
// turn's nodes unchanged.
func (r *Roller) drained(a DrainDone) {
	again, end := r.now.Add(retryAfter), r.drainer.deadline()
	retried := r.drainer.stranded && (end.IsZero() || again.Before(end))
	r.drainer = nil
	r.evicted += a.Evicted
	if a.Evicted > 0 {
		r.tries = 0
	}

	switch {
	case r.stopping:
		r.stop(interrupted)
	case r.stage == rollRestoring && a.Stopped != "":
		r.stop(a.Stopped)
	case r.stage == rollRestoring:
		r.stage = rollBuying
	case retried && r.tries < mostTries:
		// An exchange spares the nodes of these pods when the tries are used up.
		r.tries++
		r.stage, r.at = turnPlanning, again
	case a.Stopped != "":
		r.stop(fmt.Sprintf("node %s: %s", strings.Join(r.turn.Nodes, ", "), a.Stopped))
	case r.stage == turnEmptying && len(r.turn.Opens) > 0:
		r.stage = turnOpening
		for _, name := range r.turn.Opens {
			r.want(name, false, RollNote{State: rollNext})
		}
	default:
		r.stage, r.waits = turnWaiting, ""
	}
}

// advance acts on the time and on observed state. One step may pass through several stages, for
// example in a turn with empty nodes. It stops when the stage does not change, or when a drainer
// takes over.
func (r *Roller) advance() {
	if r.stopping && r.drainer == nil {
		r.stop(interrupted)
	}
	for before := rollStage(-1); r.drainer == nil && r.stage != before && r.stage != rollOver; {
		if before = r.stage; before != r.last {
			r.last, r.entered = before, r.now
		}
		r.proceed()
	}
}

// proceed moves to the next stage, if possible.
func (r *Roller) proceed() {
	if r.stage == turnPlanning && !r.at.IsZero() { // replan after a pause
		if !r.now.Before(r.at) {
			r.ask(turnPlanning)
		}
		return
	}
	r.at = time.Time{}
	switch r.stage {
	case rollListing:
		switch {
		case !r.listed:
		case r.find():
			r.total = len(r.nodes())
			r.rolled, r.stage = r.total, rollClearing
			r.clear()
		case r.exchanges() && r.unbegun():
			r.stop("")
		default:
			r.restore()
		}
	case rollBuying:
		if r.bought() {
			r.ask(rollPlanning)
		}
	case turnClosing:
		if r.settled() && !(r.exchanges() && r.wantTurn() && !r.settled()) {
			r.empty(turnEmptying)
		} else if r.exchanges() && r.overdue(r.options.Timeout) {
			r.stop(fmt.Sprintf("not all nodes could be cordoned within %s", r.options.Timeout))
		}
	case turnOpening:
		if r.settled() {
			r.empty(turnRest)
		}

	case turnWaiting:
		if r.exchanged() {
			r.endTurn()
		} else if r.exchanges() && r.overdue(removedFor) {
			r.stop(fmt.Sprintf("node %s is empty, but not removed within %s", strings.Join(r.turn.Nodes, ", "), removedFor))
		}
	case turnEnding:
		if r.settled() {
			r.next()
		}
	case rollReopening:
		limit := closesFor
		if r.exchanges() {
			limit = removedFor
		}
		if bought := r.settleBought(); r.settled() && bought || r.overdue(limit) {
			if r.stopped == "" && !r.options.DryRun && len(r.rolling().Nodes) == 0 {
				r.stage = rollClearing
				r.clear()
				return
			}
			r.end()
		}
	case rollClearing:
		for r.stage == rollClearing && r.settled() {
			r.clear()
		}
		if r.stage == rollClearing && r.overdue(closesFor) {
			r.end()
		}
	}
}

// exchanged reports whether all nodes of the turn have reached the awaited state. It reports the
// awaited nodes whenever they change.
func (r *Roller) exchanged() bool {
	var waits []string
	for _, name := range r.turn.Nodes {
		if _, existed := r.uids[name]; !existed {
			continue
		}
		if why := r.lacks(name); why != "" {
			waits = append(waits, why)
		}
	}
	if text := strings.Join(waits, "; "); text != r.waits {
		r.waits = text
		if text != "" {
			r.addAction(RollProgress{Result: Withheld, Message: text})
		}
	}
	return len(waits) == 0
}

// lacks returns the unmet condition of a node in the current turn, or "". With UntilDrained, it
// returns "".
func (r *Roller) lacks(name string) string {
	switch n := r.cluster.node(name); r.options.Until {
	case UntilRemoved:
		return r.sell(name)
	case UntilReady:
		switch {
		case n == nil:
			return fmt.Sprintf("node %s is empty: it no longer exists; waiting until it is back", name)
		case beforeOf(n) == r.before[name]:
			return fmt.Sprintf("node %s is empty: waiting until it has restarted", name)
		case !nodeReady(n):
			return fmt.Sprintf("node %s is empty: waiting until it is ready", name)
		}
	case UntilNew:
		switch {
		case n != nil && n.UID == r.uids[name]:
			return fmt.Sprintf("node %s is empty: waiting until it is gone", name)
		case n != nil && !nodeReady(n):
			return fmt.Sprintf("node %s is new: waiting until it is ready", name)
		case n == nil && r.newcomer(name) == "":
			return fmt.Sprintf("node %s is gone: waiting until a new node that is ready takes its place", name)
		}
	}

	return ""
}

// newcomer returns the replacement of a deleted node, or "".
//
// Each new node replaces a single deleted node. The new node is selected by the selector, ready,
// without a note, and younger than the roll. The choice is permanent, so that two simultaneously
// deleted nodes require two new ones.
func (r *Roller) newcomer(gone string) string {
	if r.came[gone] != "" {
		return r.came[gone]
	}
	taken := map[string]bool{}
	for _, name := range r.came {
		taken[name] = true
	}
	for _, n := range r.nodes() {
		_, noted := r.noteOf(n)
		_, turns := r.uids[n.Name]
		if !noted && !taken[n.Name] && !turns && n.CreationTimestamp.After(r.begun.Time) && nodeReady(n) && !n.Spec.Unschedulable {
			r.came[gone] = n.Name
			return n.Name
		}
	}
	return ""
}
