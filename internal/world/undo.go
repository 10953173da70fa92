package world

// Mark is a point to which a world can be taken back.
type Mark struct {
	notes int
	first bool // nothing was noted before
}

// Mark begins to note changes, so that Undo can take the world back to how it is now. Marks nest.
// One that is never undone costs only memory.
func (w *World) Mark() Mark {
	m := Mark{len(w.notes), !w.noting}
	w.noting, w.lent = true, true
	return m
}

// Undo undoes what has happened since the mark, the last change first. Its cost is that of the
// changes.
func (w *World) Undo(m Mark) {
	w.noting = false // what undoes a change is none itself
	for len(w.notes) > m.notes {
		last := len(w.notes) - 1
		undo := w.notes[last]
		w.notes[last] = nil
		w.notes = w.notes[:last]
		undo()
	}
	w.noting = !m.first
}

// Note has undo called when what happens now is undone, before what was noted earlier. It is for
// what others keep in step with the world, and for what only they know. Without a mark, nothing is
// noted.
func (w *World) Note(undo func()) {
	if w.noting {
		w.notes = append(w.notes, undo)
	}
}
