// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
)

// This file computes the shown state: it updates the marked rows, and returns the difference to the
// previous state.

// mostRows bounds the rows of a kind in one result of Changes, so that a flood is split into
// pieces, and the page can draw in between. 100,000 changed pods take 25 pieces.
const mostRows = 4000

// Changes returns the difference to the last shown state; nil if there is none. Changes beyond
// mostRows are deferred to the next call. The caller calls it again while More returns true. The
// caller owns the result.
func (c *Cluster) Changes(now time.Time) *Delta {
	c.since = cmp.Or(c.since, now.UnixMilli()) // the history begins with the first call
	c.judgeRoom()
	if len(c.dirtyNodes)+len(c.dirtyPods)+len(c.dirtyGroups)+len(c.Trees.dirty)+c.unshown == 0 {
		return nil
	}
	d := &Delta{
		Now: now.UnixMilli(), Nodes: &Set[Node]{}, Queue: &Set[Waiting]{},
		Groups: &Set[Group]{}, Composites: &Set[Composite]{}, Evictions: &Set[Leaving]{},
	}
	rows := 0
	for uid := range c.dirtyPods {
		if rows++; rows > mostRows {
			break
		}
		// Deleting while iterating is allowed; the order of rows does not matter.
		delete(c.dirtyPods, uid)
		c.showPod(uid, d)
	}
	c.Trees.showTrees(d.Composites)
	for name := range c.dirtyGroups { // not limited by mostRows: groups are few compared with pods
		c.showGroup(name, d.Groups)
	}
	clear(c.dirtyGroups)
	clear(c.Trees.dirty)
	rows = 0
	for name := range c.dirtyNodes {
		if rows++; rows > mostRows {
			break
		}
		delete(c.dirtyNodes, name)
		c.showNode(name, d.Nodes)
	}
	if len(c.events) > mostEvents {
		c.trimEvents()
	}
	c.describePods(c.events[len(c.events)-c.unshown:])
	d.Events = newestEvents(c.events[len(c.events)-c.unshown:])
	c.unshown = 0
	d.Departures = c.departures.news(now.UnixMilli(), c.pods)
	c.history.notePending(now, len(c.queue))
	// A continuing moment is included after each of its changes.
	d.History = append([]Moment(nil), c.history.moments[max(0, len(c.history.moments)-c.history.unsent):]...)
	c.history.unsent = 0
	d.Nodes, d.Queue, d.Evictions = d.Nodes.orNil(), d.Queue.orNil(), d.Evictions.orNil()
	d.Groups, d.Composites = d.Groups.orNil(), d.Composites.orNil()
	// The summary counts the shown state, so compute it after the rows.
	d.Summary = c.countSummary()
	// Only hidden parts of objects have changed, as with most status updates.
	if d.Nodes == nil && d.Queue == nil && d.Groups == nil && d.Composites == nil && d.Evictions == nil &&
		len(d.Events)+len(d.History)+len(d.Departures) == 0 && d.Summary == c.sent {
		return nil
	}
	c.sent = d.Summary
	return d
}

// More reports whether Changes deferred rows. The caller of Changes then makes another frame.
func (c *Cluster) More() bool { return len(c.dirtyNodes) > 0 || len(c.dirtyPods) > 0 }

// showPod updates a pod's rows in the queue and among the evictions. The pod may have been removed.
func (c *Cluster) showPod(uid types.UID, d *Delta) {
	p := c.pods[uid]
	var waiting Waiting
	if p != nil && p.isWaiting() {
		waiting = p.waitingRow()
		if c.grouped && p.group != "" {
			waiting.Group = p.groupName().String()
		}
		if waiting.Reason == "" && waiting.Message == "" {
			waiting.Message = c.whyUntried(p)
		}
	}
	replaceIn(d.Queue, c.queue, uid, waiting)

	before, shown := c.evictions[uid]
	row, leaves := c.leavingRow(p)
	if !leaves {
		row = Leaving{}
	}
	replaceIn(d.Evictions, c.evictions, uid, row)

	// The node's row contains the number of pods that must leave.
	if leaves != shown {
		c.countLeaving(cmp.Or(row.Node, before.Node), leaves)
	}
}

// countLeaving increments or decrements the number of pods that must leave the node.
func (c *Cluster) countLeaving(name string, leaves bool) {
	n := c.nodeNamed(name)
	if leaves {
		n.leaving++
	} else {
		n.leaving--
	}
	c.dirtyNodes[name] = true
}

// leavingRow reports whether a pod must leave, or is leaving. p may be nil: a removed pod does not
// leave.
func (c *Cluster) leavingRow(p *Pod) (row Leaving, leaves bool) {
	if p == nil || !p.takesRoom() {
		return Leaving{}, false
	}
	row = Leaving{UID: string(p.uid()), Namespace: p.eviction.Name.Namespace, Name: p.eviction.Name.Name, Node: p.eviction.Node,
		Workload: p.workload, Priority: p.priority}
	if p.going != 0 {
		row.Due, row.Going, row.Cause = p.going, true, p.cause
		return row, true
	}
	due, _ := c.core.Due(p.uid())
	if p.held != nil && due.Stays() {
		row.Due, row.Held = p.held.until, p.held.status
		return row, true
	}
	// No taint evicts the pod, or the pod tolerates the taints without a time limit.
	if due.Stays() {
		return row, false
	}
	row.Due, row.Taint = due.At.UnixMilli(), due.Taint.ToString()
	return row, true
}

// showNode updates a node's row, and drops the entry of a removed node without pods.
func (c *Cluster) showNode(name string, set *Set[Node]) {
	n := c.nodes[name]
	switch {
	// The entry was dropped earlier and marked again by the removal of a pod.
	case n == nil:
	case n.info == nil:
		if n.shown != nil {
			n.shown = nil
			set.Gone = append(set.Gone, name)
		}

		if len(n.pods) == 0 && n.leaving == 0 {
			delete(c.nodes, name)
		}
	default:
		row := n.nodeRow()
		row.Waits = c.waitsOn(n)
		if c.roomy {
			row.Blocks = c.blocksOf(n)
		}

		// Most changes of a node's pods change its row; most changes of the node's object do not.
		if n.shown == nil || !row.same(n.shown) {
			n.shown = &row
			set.Rows = append(set.Rows, row)
		}
	}
}

// countSummary adds up the shown state. It goes through the nodes, not the pods.
func (c *Cluster) countSummary() Summary {
	s := Summary{Pending: len(c.queue), Leaving: len(c.evictions), Marked: c.marked}
	for _, n := range c.nodes {
		if n.shown == nil {
			// The node is not shown, because it does not exist or has not been observed yet.
			s.Astray += int(n.count)
			continue
		}
		s.Pods += int(n.count)
		s.Nodes++
		if n.shown.Ready == "True" {
			s.Ready++
		}
		for i := range 2 {
			s.CPU[i] += n.shown.CPU[i]
			s.Memory[i] += n.shown.Memory[i]
		}
	}

	return s
}

// State returns the whole shown state, as of the last Changes. Rows are unordered.
func (c *Cluster) State(now time.Time) *Delta {
	d := &Delta{
		Now: now.UnixMilli(), Fresh: true, Since: c.since, Summary: c.countSummary(),
		Nodes: &Set[Node]{}, Queue: &Set[Waiting]{}, Groups: &Set[Group]{}, Composites: &Set[Composite]{}, Evictions: &Set[Leaving]{},
		Events:  newestEvents(c.events[:len(c.events)-c.unshown]),
		History: slices.Clone(c.history.lastMoments()),
	}

	for _, n := range c.nodes {
		if n.shown != nil {
			d.Nodes.Rows = append(d.Nodes.Rows, *n.shown)
		}
	}

	d.Departures = answer.Mapped(c.departures.order, func(uid types.UID) Departure { return *c.departures.byPod[uid] })
	d.Queue.Rows = slices.AppendSeq(d.Queue.Rows, maps.Values(c.queue))
	for _, g := range c.groups {
		if g.shown != (Group{}) {
			d.Groups.Rows = append(d.Groups.Rows, g.shown)
		}
	}
	for _, t := range c.Trees.byName {
		if t.shown != (Composite{}) {
			d.Composites.Rows = append(d.Composites.Rows, t.shown)
		}
	}
	d.Evictions.Rows = slices.AppendSeq(d.Evictions.Rows, maps.Values(c.evictions))
	return d
}

// Moment summarizes a span of time: its beginning in milliseconds, the numbers of evictions,
// preemptions and node failures, and the maximum number of pending pods. It is an array because a
// page gets thousands. For example, [1764000000000 2 0 1 17] is two evictions and one failure of a
// node within ten seconds, with up to 17 pods pending.
type Moment [5]int64

// Indexes into a Moment.
const (
	momentAt = iota
	evictions
	preemptions
	failures
	pending
)

const (
	// Every is the duration of a Moment. Moments are longer in a recording that exceeds the kept
	// history.
	Every = 10 * time.Second
	// mostMoments bounds the kept history: six hours of ten seconds each.
	mostMoments = 2160
)

// history holds the last moments, in order. A span without changes is omitted, since the number of
// pending pods stays the same. The array holds up to twice mostMoments, so that old moments are
// dropped rarely.
type history struct {
	moments []Moment
	every   time.Duration // 0: Every
	pending int64         // current number; moments hold the maximum
	unsent  int           // number of recent moments changed since they were last shown
}

// momentAt returns the moment of a time, creating it if needed, and marks it as changed. A time
// before the last moment, for example after a clock was set back, belongs to the last moment.
func (h *history) momentAt(now time.Time) *Moment {
	every := cmp.Or(h.every, Every)
	at := now.Truncate(every).UnixMilli()
	last := len(h.moments) - 1
	switch {
	case last >= 0 && h.moments[last][momentAt] >= at:
		h.unsent = max(h.unsent, 1)
		return &h.moments[last]
	case last >= 0 && h.moments[last][pending] != h.pending && h.moments[last][momentAt]+every.Milliseconds() < at:
		h.addMoment(Moment{momentAt: h.moments[last][momentAt] + every.Milliseconds(),
			pending: h.pending}) // the maximum of the last moment does not apply to the time after it
	}
	h.addMoment(Moment{momentAt: at, pending: h.pending})
	return &h.moments[len(h.moments)-1]
}

// addMoment adds a moment, and drops the older half of a full history.
func (h *history) addMoment(m Moment) {
	if len(h.moments) == 2*mostMoments {
		h.moments = append([]Moment(nil), h.lastMoments()...)
	}
	h.moments = append(h.moments, m)
	h.unsent++
}

// countEvent counts one eviction, preemption or failure.
func (h *history) countEvent(now time.Time, what int) { h.momentAt(now)[what]++ }

// notePending records the number of pending pods.
func (h *history) notePending(now time.Time, n int) {
	if int64(n) == h.pending && len(h.moments) > 0 {
		return
	}
	// Get the moment before updating the number: a new moment begins with the old number.
	m := h.momentAt(now)
	h.pending = int64(n)
	m[pending] = max(m[pending], h.pending)
}

// lastMoments returns the kept moments. The slice belongs to the history.
func (h *history) lastMoments() []Moment { return h.moments[max(0, len(h.moments)-mostMoments):] }
