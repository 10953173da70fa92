package cluster

// Change records that a node, or a pod on it, has changed. It names no pod: readers keep sums over
// classes, and look up anything else in the node as it is when they read.
type Change struct {
	Node        int32 // its index
	Kind        Kind
	Terminating bool      // of the pod that came or went
	Class       *PodClass // of the pod that came or went; nil for other kinds
}

// Kind is what changed.
type Kind uint8

const (
	// NodeChanged: the node was added, removed or updated. Changes of its pods are recorded
	// separately.
	NodeChanged Kind = iota
	// PodAdded and PodRemoved: a pod was placed on the node, or removed from it.
	PodAdded
	PodRemoved
	// PodChanged: a pod changed in something that its class does not include: it started, or is
	// being preempted.
	PodChanged
	// Nomination: a pod was nominated to the node, or no longer is.
	Nomination
)

// Log is the sequence of all changes. A reader remembers the Len up to which it has read, and gets
// what follows from Since. Positions only grow, except by Rewind; the oldest changes are forgotten.
type Log struct {
	first   int // position of entries[0]
	entries []Change
	bulk    int // of all entries
	old     int // position of which on dropOld keeps everything
}

// How many changes are kept at least: a few per node, because a reader that is further behind does
// better to read the whole cluster. There are upper bounds, too, since an entry keeps the class of
// a pod that may be gone: of their number, and MostBulk. The oldest are forgotten often, so that
// how much memory the others take depends little on when that was.
const (
	keptPerNode         = 2
	leastKept, mostKept = 1 << 10, 1 << 16
)

// add appends a change, and forgets the oldest ones if there are too many for so many nodes.
func (l *Log) add(change Change, nodes int) {
	if keep := min(max(keptPerNode*nodes, leastKept), mostKept); len(l.entries) >= keep+keep/8 {
		l.forgetOldest(len(l.entries) - keep)
	}
	l.entries = append(l.entries, change)
	if l.bulk += change.bulk(); l.bulk > MostBulk {
		oldest, left := 0, l.bulk
		for ; oldest < len(l.entries)-1 && left > MostBulk/2; oldest++ {
			left -= l.entries[oldest].bulk()
		}
		l.forgetOldest(oldest)
	}
}

// forgetOldest forgets the oldest changes.
func (l *Log) forgetOldest(changes int) {
	for i := range l.entries[:changes] {
		l.bulk -= l.entries[i].bulk()
	}
	n := copy(l.entries, l.entries[changes:])
	l.first += changes
	clear(l.entries[n:])
	l.entries = l.entries[:n]
}

// dropOld forgets what had been there when it was last called, if it takes much memory. It costs a
// reader that has not read since then the reading of the whole cluster.
func (l *Log) dropOld() {
	bulk, old := 0, min(max(l.old-l.first, 0), len(l.entries))
	for i := range l.entries[:old] {
		bulk += l.entries[i].bulk()
	}
	if bulk > MostBulk/16 {
		l.forgetOldest(old)
	}
	l.old = l.Len()
}

// bulk is how far the class of the change exceeds the usual size.
func (c *Change) bulk() int {
	if c.Class == nil {
		return 0
	}
	return c.Class.Bulk
}

// Len returns the position after the newest change, at which a reader of all changes continues.
func (l *Log) Len() int { return l.first + len(l.entries) }

// Since returns the changes from a position on. ok is false if some of them have been forgotten. If
// it is false, the reader has to read the whole cluster again. The changes are valid until the next
// one.
//
//	at := c.Log.Len()                  // up to date here
//	...                                // the cluster changes
//	changes, ok := c.Log.Since(at)     // what has happened since
func (l *Log) Since(position int) (changes []Change, ok bool) {
	if position < l.first {
		return nil, false
	}
	return l.entries[position-l.first:], true
}

// Rewind forgets the changes from a position on. They must cancel each other out, and no reader may
// have seen them.
func (l *Log) Rewind(position int) {
	if position >= l.first {
		for i := range l.entries[position-l.first:] {
			l.bulk -= l.entries[position-l.first+i].bulk()
		}
		clear(l.entries[position-l.first:])
		l.entries = l.entries[:position-l.first]
	}
}
