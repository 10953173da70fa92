// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// manyReasons is the number of reasons beyond which a ranking is rebuilt, since some reasons may
// refer to deleted objects. A bucket can represent more reasons. The same limit plus two per node
// applies to statics.
const manyReasons = 1 << 12

// catchUp applies all new entries of the log.
func (r *ranking) catchUp() {
	log := &r.ix.c.Log
	changes, known := log.Since(r.seen)
	if !known || len(r.reasons.list) > manyReasons || len(r.statics) > manyReasons+2*len(r.bucket) ||
		len(changes) > len(r.bucket)/2+64 && len(r.tallies) == 0 {
		r.rebuild()
		return
	}

	for i := range changes {
		if changes[i].Kind == cluster.NodeChanged && len(r.tallies) > 0 && !r.keepsTallies(changes[i].Node) {
			r.rebuild()
			return
		}
	}

	r.seen = log.Len()
	judged := none // last node judged; nodes are judged in their current state, so further changes of the same node need no judgement
	for i := 0; i < len(changes); i++ {
		if r.flat != nil && r.plan.onlyRoom() {
			if i += r.followRooms(changes[i:]); i == len(changes) {
				return
			}
		}
		change := &changes[i]
		switch change.Kind {
		case cluster.PodAdded:
			r.followPod(change, 1)
		case cluster.PodRemoved:
			r.followPod(change, -1)
		case cluster.NodeChanged:
			r.growTo(len(r.ix.c.Nodes))
			r.regroupNodeAs(change.Node, true)
			judged = change.Node
		}
		if change.Kind != cluster.PodChanged && change.Node != judged {
			r.updateBucket(change.Node)
			judged = change.Node
		}
	}
}

// keepsTallies reports whether the tallies remain valid despite the change of a node: no node has
// moved to another domain, and the pods on this node still count in the same tallies.
func (r *ranking) keepsTallies(node int32) bool {
	n := r.ix.c.Nodes[node]
	if n == nil || int(node) >= len(r.bucket) || r.bucket[node] == absent || r.domainChanges() != r.counted.inDomains {
		return false
	}
	r.counted.marks = r.counted.marks.sized(r.plan.spreadTallies())
	r.plan.countsPodsOf(n, r.counted.marks)
	return slices.Equal(r.counted.marks, r.counted.tallies.tallies(node))
}

// followRooms applies the leading changes that are pod additions and removals, and returns their
// number. It is a faster replacement of the loop in catchUp, for rankings without tallies that
// depend on room only: hundreds of such rankings follow every placement.
func (r *ranking) followRooms(changes []cluster.Change) int {
	rooms, balance, buckets, flat, room := r.ix.c.Rooms, r.ix.balance, r.bucket, r.flat, r.plan.room
	for i := range changes {
		if i%ahead == 0 {
			r.prefetchBuckets(changes[i:min(i+ahead, len(changes))])
		}
		change := &changes[i]
		if change.Kind != cluster.PodAdded && change.Kind != cluster.PodRemoved {
			return i
		}
		node := change.Node
		before := buckets[node]
		if before <= ^settled {
			continue
		}
		if balance[node] < 0 { // the node has nominated pods
			r.updateBucket(node)
			continue
		}
		switch now := room.scoreNode(&rooms[node], balance[node]); {
		case now < 0 || before < 0:
			r.updateBucket(node) // the reason may have changed
		case now != before:
			buckets[node] = now
			flat.numberChanged(node, before)
		}
	}
	return len(changes)
}

// ahead is the number of changes in one batch of prefetchBuckets.
const ahead = 64

// prefetchBuckets reads the buckets of a batch of changed nodes. Updates of other rankings have
// evicted these buckets from the CPU caches, and waiting for memory on each access would dominate
// the cost.
func (r *ranking) prefetchBuckets(changes []cluster.Change) {
	all := int16(0)
	for i := range changes {
		if node := int(changes[i].Node); node < len(r.bucket) {
			all |= r.bucket[node]
		}
	}
	r.prefetched = all
}
