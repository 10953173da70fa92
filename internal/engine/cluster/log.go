// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

// Change records a change of a node or of a pod on it. It names no pod: readers keep sums over
// classes, and look up everything else in the current state of the node.
type Change struct {
	Node        int32 // index of the node
	Kind        Kind
	Terminating bool      // whether the added or removed pod is terminating
	Class       *PodClass // class of the added or removed pod; nil for other kinds
}

// Kind is the kind of a change.
type Kind uint8

const (
	// NodeChanged: the node was added, removed or updated. Changes of its pods are recorded
	// separately.
	NodeChanged Kind = iota
	// PodAdded and PodRemoved: a pod was placed on the node, or removed from it.
	PodAdded
	PodRemoved
	// PodChanged: a property of a pod outside its class changed: the pod started, or is being
	// preempted.
	PodChanged
	// Nomination: a pod was nominated to the node, or its nomination ended.
	Nomination
)

// Log is the sequence of changes, except for the oldest, which are dropped. A reader remembers the
// Len up to which it has read, and gets the following changes from Since. Positions only grow,
// except by Rewind.
type Log struct {
	first   int // position of entries[0]
	entries []Change
	bulk    int // total bulk of all entries
	old     int // dropOld keeps all changes from this position on
}

// The log keeps keptPerNode changes per node, but at least leastKept and at most mostKept: a reader
// further behind rescans the whole cluster at lower cost. The total bulk of the entries is also
// bounded (MostBulk), since an entry retains the class of a possibly deleted pod. The oldest
// entries are dropped frequently, so that memory use varies little over time.
const (
	keptPerNode         = 2
	leastKept, mostKept = 1 << 10, 1 << 16
)

// add appends a change, and drops the oldest changes if there are too many for this number of
// nodes.
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

// forgetOldest drops the oldest changes.
func (l *Log) forgetOldest(changes int) {
	for i := range l.entries[:changes] {
		l.bulk -= l.entries[i].bulk()
	}
	n := copy(l.entries, l.entries[changes:])
	l.first += changes
	clear(l.entries[n:])
	l.entries = l.entries[:n]
}

// dropOld drops the changes already present at its last call, if they take much memory. A reader
// that has not read since that call must rescan the whole cluster.
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

// bulk returns the bulk of the change's class.
func (c *Change) bulk() int {
	if c.Class == nil {
		return 0
	}
	return c.Class.Bulk
}

// Len returns the position after the newest change, where an up-to-date reader continues.
func (l *Log) Len() int { return l.first + len(l.entries) }

// Since returns the changes from a position on. If some of them have been dropped, ok is false, and
// the reader must rescan the whole cluster. The returned slice is valid until the next change.
//
//	at := c.Log.Len()                  // up to date here
//	...                                // the cluster changes
//	changes, ok := c.Log.Since(at)     // the changes since then
func (l *Log) Since(position int) (changes []Change, ok bool) {
	if position < l.first {
		return nil, false
	}
	return l.entries[position-l.first:], true
}

// Rewind removes the changes from a position on. They must cancel each other out, and no reader may
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
