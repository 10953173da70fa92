package cluster

// Change says that a node is no longer what it was.
type Change struct {
	Node        int32
	Kind        Kind
	Terminating bool      // of the pod that came or went
	Class       *PodClass // of the pod that came or went; nil for other kinds
}

// Kind is what changed.
type Kind uint8

const (
	// NodeChanged: the node came, went, or is another in what it is; its pods' comings and goings
	// are told beside it.
	NodeChanged Kind = iota
	// PodAdded and PodRemoved: a pod came to the node or left it.
	PodAdded
	PodRemoved
	// PodChanged: what sets a pod apart from its class changed: it started, or is leaving for
	// another one.
	PodChanged
	// Nomination: a pod was nominated to the node, or is no longer.
	Nomination
)

// Log is the changes in their order. Readers remember Len() of when they were last up to date and
// ask Since for the rest.
type Log struct {
	first   int // position of entries[0]
	entries []Change
}

// How many changes are kept at least: some for every node, since a reader further behind reads the
// cluster anew, which costs it less. An entry keeps the class of a pod that may be gone.
const (
	keptPerNode         = 2
	leastKept, mostKept = 1 << 10, 1 << 16
)

func (l *Log) add(change Change, nodes int) {
	if keep := min(max(keptPerNode*nodes, leastKept), mostKept); len(l.entries) >= 2*keep {
		n := copy(l.entries, l.entries[len(l.entries)-keep:])
		l.first += len(l.entries) - n
		clear(l.entries[n:])
		l.entries = l.entries[:n]
	}
	l.entries = append(l.entries, change)
}

// Len is the position behind the newest change.
func (l *Log) Len() int { return l.first + len(l.entries) }

// Since returns the changes from a position on. ok is false when some of them are no longer known.
func (l *Log) Since(position int) (changes []Change, ok bool) {
	if position < l.first {
		return nil, false
	}
	return l.entries[position-l.first:], true
}

// Rewind forgets the changes from a position on. They must have undone each other, and nobody may
// have read them.
func (l *Log) Rewind(position int) {
	if position >= l.first {
		clear(l.entries[position-l.first:])
		l.entries = l.entries[:position-l.first]
	}
}
