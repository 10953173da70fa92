// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// note is the content of NoteAnnotation. It records the starts of taints that have no timeAdded, if
// the managed fields no longer show them.
//
// For example, kubectl taints a node with a:NoExecute at 10:00 and with b:NoExecute at 10:05.
// Neither taint has a time, and according to the managed fields the list was last written at 10:05.
// A Core that starts later would assume that taint a began at 10:05, and evict five minutes late.
// The note {"of":"10:05","since":{"a:NoExecute":"10:00"}} prevents that.
type note struct {
	// Of is the time at which the list of taints that the note describes was written. The note is
	// void if the list has been written since. The time has whole seconds: to identify the list
	// uniquely, a note is made only when the list is older than settled, and conditionally on the
	// last observed version of the node.
	Of    time.Time            `json:"of,omitzero"`
	Since map[string]time.Time `json:"since"`
}

// settled is the time for which a list of taints must be unchanged before its note is made. By
// then, the second in which the list was written is over on any clock.
const settled = 2 * time.Second

// notesInFlight bounds concurrent writes of notes: they must not delay evictions.
const notesInFlight = 4

// parseNote parses a note; ok is false if text is empty or invalid. A note that was not written by
// Berth is treated like a missing note.
func parseNote(text string) (n note, ok bool) {
	err := json.Unmarshal([]byte(text), &n)
	return n, err == nil
}

// wantedNote returns the note needed by a new Core to determine the same times, or "" if it needs
// none.
func (n *node) wantedNote() string {
	since := map[string]time.Time{}
	for _, h := range n.Held {
		if h.Taint.TimeAdded.IsZero() && !h.Written.Equal(n.TaintsWritten) {
			since[h.ID()] = h.Written
		}
	}
	if len(since) == 0 {
		return ""
	}
	text, err := json.Marshal(note{Of: n.TaintsWritten, Since: since})
	if err != nil {
		return "" // times beyond the year 9999 cannot be encoded, and never occur
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
	return okX && okY && x.Of.Equal(y.Of) && maps.EqualFunc(x.Since, y.Since, time.Time.Equal)
}

// notes holds the nodes with a note that differs from the wanted note.
//
// A node is in the list late at most once, and only while its note must be written. One write of a
// node's note is in flight at a time: node.noting is set exactly for the nodes in written.
type notes struct {
	out *outbox

	silent  bool                      // Options.Watches: no note is written
	late    []*node                   // nodes with notes to write, in order of discovery
	written map[response.Ticket]*node // note writes in flight
}

// check determines whether the node's note must be written. A rewritten list of taints must settle
// first.
func (n *notes) check(now time.Time, of *node, rewritten bool) {
	if rewritten {
		of.NoteTries, of.NoteAt = 0, now.Add(settled)
	}
	if n.silent || saysTheSame(of.Note, of.wantedNote()) {
		n.drop(of)
		return
	}
	if !slices.Contains(n.late, of) {
		n.late = append(n.late, of)
	}
}

// drop removes a node from late because it was deleted or has the wanted note.
func (n *notes) drop(of *node) {
	if i := slices.Index(n.late, of); i >= 0 {
		n.late = slices.Delete(n.late, i, i+1)
	}
}

// next returns the time of the next write.
func (n *notes) next() (at time.Time, ok bool) {
	if len(n.written) >= notesInFlight {
		return time.Time{}, false
	}
	for _, node := range n.late {
		if !node.Noting && (!ok || node.NoteAt.Before(at)) {
			at, ok = node.NoteAt, true
		}
	}
	return at, ok
}

// write sends the notes that are due. A node stays in late until the watch delivers its new note.
func (n *notes) write(now time.Time) {
	for _, node := range n.late {
		if len(n.written) >= notesInFlight {
			return
		}
		if node.Noting || now.Before(node.NoteAt) {
			continue
		}
		node.Noting = true
		ticket := n.out.issueTicket()
		n.written[ticket] = node
		n.out.add(Annotate{Ticket: ticket, Node: node.Name, ResourceVersion: node.Version, Note: node.wantedNote()})
	}
}

// takeAnswer handles a response if it belongs to a write of a note. The note counts as written only
// when the watch delivers it. Until then, and whenever another client removes it, the note is
// written again, with growing pauses.
func (n *notes) takeAnswer(now time.Time, answer Answered) bool {
	node, ok := n.written[answer.Ticket]
	if !ok {
		return false
	}
	delete(n.written, answer.Ticket)
	node.Noting = false
	node.NoteTries++
	backoff := pacing.Backoff{First: time.Second, Last: time.Minute}
	node.NoteAt = now.Add(max(backoff.After(node.NoteTries, node.Name), min(answer.RetryAfter, lastRetry)))
	return true
}
