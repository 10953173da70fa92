// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "github.com/berth-k8s/berth/internal/engine/cluster"

// mostRecent is the number of events kept for pods with running attempts; cluster.MostBulk limits
// the size of their objects. If more events occur during an attempt, only the kinds of the older
// events are known.
const mostRecent = 1024

// history keeps the events that occur while pods are being decided or bound. Each attempt records
// the number of events at its beginning. If the pod is rejected, it is matched against the events
// after that number.
type history struct {
	events uint64                 // total number of events
	last   [len(kinds)][64]uint64 // number of the last event of each kind and action
	recent []Event                // the newest events; empty while no attempt is running
	bulk   int                    // total bulk of recent
}

// noteEvent records an event. kept is false if no attempt is running, because in that case no
// attempt can miss the event.
func (h *history) noteEvent(e *Event, kept bool) {
	h.events++
	k := kindOf(e.Resource)
	for bit := 0; e.Action>>bit != 0; bit++ {
		if e.Action>>bit&1 != 0 {
			h.last[k][bit] = h.events
		}
	}

	if !kept {
		h.forgetOldest(len(h.recent))
		return
	}

	if len(h.recent) == mostRecent {
		h.forgetOldest(mostRecent / 2)
	}
	h.recent = append(h.recent, *e)
	latest := &h.recent[len(h.recent)-1]
	latest.objects = bulkOf(e.Old) + bulkOf(e.New)
	if h.bulk += latest.bulkOf(); h.bulk > cluster.MostBulk {
		h.forgetOldest((len(h.recent) + 1) / 2)
	}
}

// forgetOldest forgets the oldest events.
func (h *history) forgetOldest(events int) {
	rest := copy(h.recent, h.recent[events:])
	clear(h.recent[rest:])
	h.recent, h.bulk = h.recent[:rest], 0
	for i := range h.recent {
		h.bulk += h.recent[i].bulkOf() // recomputed, since the class of an item may have changed
	}
}

// missedHelp returns the effect of the events after a position on an item of the group. Hints
// receive the objects as of each event, but the current state of the nodes. Events dropped from the
// history are matched only by kind, without hints. A pod may then be retried once too often, but
// never misses an event.
func (g *group) missedHelp(item *Item, h *history, position uint64, asked Asked) (best help) {
	if missed := h.events - position; missed <= uint64(len(h.recent)) {
		for i := len(h.recent) - int(missed); i < len(h.recent); i++ {
			if e := &h.recent[i]; e.Own == nil || e.Own == item {
				best = max(best, g.helpFor(item, e, asked))
			}
			if best == atOnce || best == afterBackoff && len(g.pending) == 0 {
				break
			}
		}
		return best
	}

	for k := range h.last {
		for bit, at := range h.last[k] {
			if at > position && (g.anything || g.wants[k]>>bit&1 != 0 || k == len(kinds)-1) {
				return afterBackoff
			}
		}
	}
	return nothing
}
