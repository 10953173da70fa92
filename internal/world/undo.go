// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package world

// Mark is a state to which a world can be restored.
type Mark struct {
	notes int
	first bool // nothing was noted before
}

// Mark begins to record changes, so that Undo can restore the current state of the world. Marks
// nest. A mark that is never undone costs only memory.
func (w *World) Mark() Mark {
	m := Mark{len(w.notes), !w.noting}
	w.noting, w.lent = true, true
	return m
}

// Undo undoes the changes since the mark, the last one first. It costs as much as the changes.
func (w *World) Undo(m Mark) {
	w.noting = false // the inverse of a change is not a change itself
	for len(w.notes) > m.notes {
		last := len(w.notes) - 1
		undo := w.notes[last]
		w.notes[last] = nil
		w.notes = w.notes[:last]
		undo()
	}
	w.noting = !m.first
}

// Note registers undo, to be called when the current changes are undone, before earlier
// registrations. It is for state derived from the world, and for state known only to the caller.
// Without a mark, Note does nothing.
func (w *World) Note(undo func()) {
	if w.noting {
		w.notes = append(w.notes, undo)
	}
}
