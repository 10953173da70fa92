// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "github.com/berth-k8s/berth/internal/engine/cluster"

// mostRecent is the number of events kept for pods with running attempts; cluster.MostBulk bounds
// their objects. For longer attempts, only the kinds of events are known.
const mostRecent = 1024

// history keeps the events that occur while pods are being decided or bound. An attempt notes the
// number of events at its beginning. If it fails, it retrieves the events since.
type history struct {
	events uint64                 // how many there have been
	last   [len(kinds)][64]uint64 // the last event of each kind and action, as counted by events
	recent []Event                // the newest ones, up to events; empty while no pod is in progress
	bulk   int                    // of what recent is about
}

// noteEvent records an event. kept is false without running attempts, when none can have missed it.
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
		h.bulk += h.recent[i].bulkOf() // again, since the class of an item may have changed
	}
}

// missedHelp returns the effect on an item of the group of the events after a position. Hints see
// the events in their state at the time, and the nodes in their present state. For events dropped
// from the history, only the kinds decide, without hints: a pod may then be tried once too often,
// but never misses an event.
func (g *group) missedHelp(item *Item, h *history, since uint64, asked Asked) (best help) {
	if missed := h.events - since; missed <= uint64(len(h.recent)) {
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
			if at > since && (g.anything || g.wants[k]>>bit&1 != 0 || k == len(kinds)-1) {
				return afterBackoff
			}
		}
	}
	return nothing
}
