package queue

// mostRecent is how many events are kept for pods whose attempts are under way. About longer
// attempts, only the kinds of events are known.
const mostRecent = 1024

// history keeps the events that occur while pods are being decided or bound.
type history struct {
	events uint64                 // how many there have been
	last   [len(kinds)][64]uint64 // the last event of each kind and action, as counted by events
	recent []Event                // the newest ones, up to events; empty while no pod is under way
}

// note records an event. kept is false while no attempt is under way, so that no attempt can have
// missed it.
func (h *history) note(e *Event, kept bool) {
	h.events++
	k := kind(e.Resource)
	for bit := 0; e.Action>>bit != 0; bit++ {
		if e.Action>>bit&1 != 0 {
			h.last[k][bit] = h.events
		}
	}
	if !kept {
		clear(h.recent)
		h.recent = h.recent[:0]
		return
	}
	if len(h.recent) == mostRecent {
		rest := copy(h.recent, h.recent[mostRecent/2:])
		clear(h.recent[rest:])
		h.recent = h.recent[:rest]
	}
	h.recent = append(h.recent, *e)
}

// missed returns what the events after a position can do for an item of the group. Hints see the
// events as they were, and the nodes as they are now.
func (g *group) missed(item *Item, h *history, since uint64, asked Asked) (best help) {
	if missed := h.events - since; missed <= uint64(len(h.recent)) {
		for i := len(h.recent) - int(missed); i < len(h.recent); i++ {
			if e := &h.recent[i]; e.Own == nil || e.Own == item {
				best = max(best, g.helped(item, e, asked))
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
