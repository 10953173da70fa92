// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// ranking orders all nodes by their suitability for the pods of one class.
//
// Nodes are divided into groups. The nodes of a group have the same inputs to all verdicts and
// scores, except for the pods on the node itself. Within the group, nodes are in buckets by their
// scores for room. The best nodes of a group are in its highest bucket, so a decision only compares
// the groups, which are few.
//
// A ranking follows the cluster's log; seen is its position in the log.
//
// Invariants: every existing node is in exactly one group, which counts it in ok or rejected; the
// bucket of a node is the result of roomOf at that position of the log; a node is in buckets of its
// group if and only if its bucket is not negative. During a decision, withholdNodes may count nodes
// as rejected; the end of the decision reverts this.
type ranking struct {
	sheet // holds the last plan made for a class of the ranking
	space *rankScratch
	seen  int // position in the log

	key        rankingKey
	namespaces uint64 // version of the namespaces
	terms      int    // version of all terms when the plan was made
	used       uint64 // decider's clock at the last use
	dropped    bool   // the ranking is no longer kept up to date
	weight     int    // last result of cache.bytesOf

	// The location of each node, by index. Buckets are separate from positions because most changes
	// of a node's pods leave the node in its bucket, and then do not access its position.
	bucket []int16
	at     []position
	// fine holds the fine scores of nodes in buckets; nil if no scorer has fine scores. See
	// plugins.Scoring.
	fine []int64

	// flat replaces the buckets of groups while at most one group has unsettled nodes; otherwise it
	// is nil. While flat is set, live is the group with unsettled nodes, or none; settledOnes holds
	// the groups of settled nodes by reason; and the positions (at) are not maintained.
	flat        *maxTree
	live        int32
	settledOnes map[int]int32

	// The indexes of the sheet's lists and of the pods counted in its tallies.
	inStatics staticTable
	inGroups  groupTable
	counted   countedPods
	reasons   reasonTable
	values    []int64 // scratch space: values of a node being added to a group

	rebuilds      int   // number of scans of the whole cluster
	filterVersion int   // number of changes of filtering tallies
	prefetched    int16 // result of prefetchBuckets, stored so that the compiler keeps its reads
}

// rankingKey is the key shared by the classes of one ranking.
type rankingKey struct {
	needs     [2]uint64
	signature string
}

// A bucket is the sum of a node's scores for room. If the node cannot take the pod because of its
// own state, the bucket is ^reason, which is negative, or ^(reason|settled) if no change of the
// node's pods can alter this. The bucket of a node in no group is absent.
const (
	settled = 1 << 14
	absent  = -1 << 15
)

// position is a node's group and its index in a bucket of the group.
type position struct {
	group int32
	place int32
}

// bytes estimates the memory of the ranking.
func (r *ranking) bytes() int {
	const alone = 8 << 10 // fixed part, for a cluster of any size
	n := alone + 8*len(r.fine) + 2*len(r.bucket) + 8*len(r.at) + len(r.counted.tallies.bits)
	if r.flat == nil {
		// The capacity of the buckets is estimated at 1.5 times their contents.
		n += 6*len(r.bucket) + 24*(r.plan.maxRoom+1)*len(r.groups)
	}
	for _, t := range r.tallies {
		n += 8*len(t.count) + 4*len(t.included)
	}
	n += effectBytes*len(r.counted.effects) + len(r.key.signature) + bulkBytes*r.plan.example.Class.Bulk
	return n
}

// effectBytes estimates the memory of a class in countedPods.effects.
const effectBytes = 64

// growTo makes room for new nodes.
func (r *ranking) growTo(nodes int) {
	if len(r.bucket) >= nodes {
		return
	}
	for len(r.bucket) < nodes {
		r.bucket = append(r.bucket, absent)
		if r.fine != nil {
			r.fine = append(r.fine, 0)
		}
		if r.flat == nil {
			r.at = append(r.at, position{})
		}
	}
	if r.flat != nil {
		r.flat.startOver(r.bucket)
	}
}

// groupAt returns the group of a node, which must not be absent.
func (r *ranking) groupAt(node int32) int32 {
	switch {
	case r.flat == nil:
		return r.at[node].group
	case r.bucket[node] <= ^settled:
		return r.settledOnes[reasonIn(r.bucket[node])]
	}
	return r.live
}

// reasonOf returns the index of a reason; see reasonTable.
func (r *ranking) reasonOf(plugin string, rejection *plugins.Rejection) int16 {
	return r.reasons.indexOf(plugin, rejection, r.ix.limits.Reasons)
}

// rankScratch is scratch space for one decision from a ranking. All rankings of a cache share it.
type rankScratch struct {
	sheetScratch
	best    []*group      // used by bestGroups
	weights []float64     // used by weighConstraints
	asked   []int32       // used by askNodes and finestNodes
	recent  recentGroups  // shared by all rankings
	copy    *cluster.Node // used by lacksNominatedRoom
}

// groupTable finds the groups of a ranking by their keys.
//
// Each group with nodes is in byKey or in byLong. The index of a group without nodes is in vacant,
// and its buckets, all empty, are kept for the next group with that index.
type groupTable struct {
	byKey  map[groupKey]int32
	byLong map[string]int32 // replaces byKey if there are more tallies than a groupKey holds
	vacant []int32          // free indices in groups
	recent *recentGroups    // cache of byKey
}

// recentGroups caches the groups found last by any ranking of a cache, because most nodes have the
// same key as a recent node.
type recentGroups [64]recentGroup

type recentGroup struct {
	table *groupTable
	key   groupKey
	index int32
}

// staticKey is the key shared by nodes with the same static. For a node rejected by an early
// filter, all fields except early are ignored; early and late are -1 if there is no reason.
type staticKey struct {
	early, late            int16
	taint, affinity, image int64
	scored, hostname       bool
}

// staticTable finds the statics of a ranking: the scores and rejections of nodes regardless of
// their pods. Most nodes have the same static as the previous node, so the latest entry is checked
// first.
type staticTable struct {
	byKey  map[staticKey]int32
	latest staticKey // key last returned by staticOf
	index  int32     // index of latest
}

// countedPods holds a ranking's data about the pods counted by its tallies.
//
// The look of a pod's class determines how the pod counts. Spread tallies count only the pods of
// nodes included by their constraint; tallies records these nodes. It is valid while inDomains
// equals domainChanges, that is, until a node moves to another domain.
type countedPods struct {
	tallies   marks                  // by node: the spread tallies that count its pods
	inDomains int                    // value of domainChanges when tallies was filled
	effects   map[[2]uint64][]effect // by PodClass.Look of placed pods
	// The latest look is checked first because the same pod is often added and removed several
	// times in a row.
	look   [2]uint64
	latest []effect // effects of look
	places []effect // by tally of the plan: its index among the ranking's tallies, and its part of a merged tally
	marks  tallySet // scratch space for keepsTallies
}

// reasonIn returns the reason in a negative bucket.
func reasonIn(bucket int16) int { return int(^bucket) & (settled - 1) }

// effectsOf returns the effects of a pod of the class on the tallies.
func (r *ranking) effectsOf(class *cluster.PodClass) []effect {
	if r.counted.look == class.Look {
		return r.counted.latest
	}
	effects, known := r.counted.effects[class.Look]
	if !known {
		const few = 1 << 10
		if len(r.counted.effects) >= few+2*r.ix.placed.looks.Len() { // most entries belong to looks whose pods no longer exist
			r.counted.effects = map[[2]uint64][]effect{}
		}
		effects = r.plan.effectsOf(class)
		for i := range effects {
			place := r.counted.places[effects[i].tally]
			effects[i].tally, effects[i].part = place.tally, place.part
		}
		r.counted.effects[class.Look] = effects
	}
	r.counted.look, r.counted.latest = class.Look, effects
	return effects
}

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
