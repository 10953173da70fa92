package eviction

import (
	"encoding/json"
	"slices"
	"time"
)

// note is what NoteAnnotation holds: since when the node has those taints that
// carry no time of their own, where the managed fields alone would not tell.
type note struct {
	// Of is the witness of the list of taints that the note was made for. If
	// the list was written since, the note says nothing any more. The witness
	// has whole seconds; so that no later writing has the same one, a note is
	// made when its list is older than settled, and on the version of the node
	// that the watch showed last.
	Of    time.Time            `json:"of,omitzero"`
	Since map[string]time.Time `json:"since"`
}

// settled is how long a list of taints must have been seen unchanged before its
// note is made: the second of its writing is over then, by whatever clock.
const settled = 2 * time.Second

// notesInFlight bounds the notes being written at once: they must not be in the
// way of evictions.
const notesInFlight = 4

func parseNote(text string) (n note, ok bool) {
	if text == "" {
		return note{}, false
	}
	if json.Unmarshal([]byte(text), &n) != nil {
		return note{}, false // somebody else's text: as good as none
	}
	return n, true
}

// wantedNote is the note that a Core that knows nothing would need to arrive
// at the same times, "" if it needs none.
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

// saysTheSame compares notes by what they say, since encodings may differ.
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

// checkNote remembers whether the node's note has to be written.
func (c *Core) checkNote(now time.Time, n *node, changed bool) {
	if changed {
		n.noteTries, n.noteAt = 0, now.Add(settled)
	}
	if c.breakSafeguards.noNote || saysTheSame(n.note, n.wantedNote()) {
		c.unnoted = drop(c.unnoted, n)
		return
	}
	if !slices.Contains(c.unnoted, n) {
		c.unnoted = append(c.unnoted, n)
	}
}

func drop(list []*node, n *node) []*node {
	if i := slices.Index(list, n); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// note sends the notes that are due.
func (c *Core) note(now time.Time) {
	for _, n := range c.unnoted {
		if len(c.noting) >= notesInFlight {
			return
		}
		if n.noting || now.Before(n.noteAt) {
			continue
		}
		n.noting = true
		ticket := c.ticket()
		c.noting[ticket] = n
		c.do(Annotate{Ticket: ticket, Node: n.name, ResourceVersion: n.version, Note: n.wantedNote()})
	}
}

// noted takes in what became of a note. Whether it is there is for the watch to
// say; until then, and if somebody else takes it away, it is written again
// further and further apart.
func (c *Core) noted(now time.Time, n *node) {
	n.noting = false
	n.noteTries++
	n.noteAt = now.Add(backOff(n.noteTries, time.Second, time.Minute, n.name))
}
