package eviction

import (
	"encoding/json"
	"slices"
	"time"
)

// note is the content of NoteAnnotation: since when the node has those taints that carry no time of
// their own, where the managed fields alone would not tell.
type note struct {
	// Of is the witness of the list of taints that the note was made for. If the list was written
	// since, the note is void. A witness has whole seconds. So that no later write has the same
	// one, a note is made only when its list is older than settled, and on the version of the node
	// that the watch last showed.
	Of    time.Time            `json:"of,omitzero"`
	Since map[string]time.Time `json:"since"`
}

// settled is how long a list of taints must be unchanged before its note is made: by then the
// second in which it was written is over by any clock.
const settled = 2 * time.Second

// notesInFlight bounds the notes being written at once: they must not delay evictions.
const notesInFlight = 4

func parseNote(text string) (n note, ok bool) {
	if text == "" {
		return note{}, false
	}
	if json.Unmarshal([]byte(text), &n) != nil {
		return note{}, false // written by something else: treated as no note
	}
	return n, true
}

// wantedNote returns the note from which a new Core would arrive at the same times, "" if it needs
// none.
func (n *node) wantedNote() string {
	since := map[string]time.Time{}
	for _, h := range n.held {
		if h.Taint.TimeAdded.IsZero() && !h.written.Equal(n.witness) {
			since[h.ID()] = h.written
		}
	}
	if len(since) == 0 {
		return ""
	}
	text, err := json.Marshal(note{Of: n.witness, Since: since})
	if err != nil {
		return "" // a year past 9999: no such time was ever seen
	}
	return string(text)
}

// saysTheSame compares notes by content, since encodings may differ.
func saysTheSame(a, b string) bool {
	if a == b {
		return true
	}
	x, okX := parseNote(a)
	y, okY := parseNote(b)
	if !okX || !okY || !x.Of.Equal(y.Of) || len(x.Since) != len(y.Since) {
		return false
	}
	for id, t := range x.Since {
		if u, ok := y.Since[id]; !ok || !u.Equal(t) {
			return false
		}
	}
	return true
}

// checkNote determines whether the node's note has to be written.
func (c *Core) checkNote(now time.Time, n *node, changed bool) {
	if changed {
		n.noteTries, n.noteAt = 0, now.Add(settled)
	}
	if c.breakSafeguards.noNote || saysTheSame(n.note, n.wantedNote()) {
		c.unnoted = dropNode(c.unnoted, n)
		return
	}
	if !slices.Contains(c.unnoted, n) {
		c.unnoted = append(c.unnoted, n)
	}
}

func dropNode(list []*node, n *node) []*node {
	if i := slices.Index(list, n); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// sendNotes sends the notes that are due.
func (c *Core) sendNotes(now time.Time) {
	for _, n := range c.unnoted {
		if len(c.noting) >= notesInFlight {
			return
		}
		if n.noting || now.Before(n.noteAt) {
			continue
		}
		n.noting = true
		ticket := c.issueTicket()
		c.noting[ticket] = n
		c.addAction(Annotate{Ticket: ticket, Node: n.name, ResourceVersion: n.version, Note: n.wantedNote()})
	}
}

// noteWritten handles the answer to a write of a note. Only the watch shows whether the note is
// there; until then, and whenever someone else removes it, it is written again, with growing
// pauses.
func (c *Core) noteWritten(now time.Time, n *node) {
	n.noting = false
	n.noteTries++
	n.noteAt = now.Add(backOff(n.noteTries, time.Second, time.Minute, n.name))
}
