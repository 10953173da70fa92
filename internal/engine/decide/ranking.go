package decide

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// ranking is all nodes in the order in which they suit the pods of one class.
//
// Nodes are divided into groups. The nodes of a group agree in everything that a verdict or a
// score depends on, except for the pods on the node itself; within the group they are in buckets
// by the scores for room. So the best node of a group is any in its highest bucket, and to find
// the best of all, only groups are compared, of which there are few.
//
// A ranking follows the cluster's log from the position seen on.
//
// Invariants: every existing node is in one group, and ok and rejected of its group count it;
// bucket is what roomOf says of the node at position seen; a node is in buckets of its group if
// and only if bucket is not negative. While a decision lasts, withholdNodes may have moved nodes
// to where they are rejected; they are put back when it ends.
type ranking struct {
	sheet // its plan is the one that was made last for a class of the ranking
	space *rankScratch
	seen  int // position in the log

	key        rankingKey
	namespaces uint64 // version
	terms      int    // version of all terms when the plan was made
	used       uint64 // when, by the decider's clock
	dropped    bool   // it is no longer kept up to date

	// Where each node is, by index. The buckets are apart from the rest because they are all that
	// is read when the pods of a node change and it stays in its bucket, as in most cases.
	bucket []int16
	at     []position
	// fine has the fine scores of nodes in buckets; nil if no plugin has any. See plugins.Scoring.
	fine []int64

	// flat replaces the buckets of groups while at most one group has nodes that are not settled;
	// otherwise it is nil. live is that group, or none; settledOnes are the groups of settled nodes
	// by reason; at is not kept.
	flat        *summit
	live        int32
	settledOnes map[int]int32

	// Where to find what is in the lists of the sheet, and what counts in its tallies.
	inStatics staticTable
	inGroups  groupTable
	counted   countedPods
	reasons   reasonTable
	values    []int64 // scratch space: of the node that is put into a group

	rebuilds      int   // how often the whole cluster was read
	filterVersion int   // counts changes of the tallies that filter
	prefetched    int16 // keeps the compiler from dropping prefetchBuckets
}

// rankingKey is what the classes of one ranking have in common.
type rankingKey struct {
	needs     [2]uint64
	signature string
}

// A bucket is the sum of a node's scores for room. If the node itself cannot take the pod, it is
// ^reason, which is negative; ^(reason|settled) if no change of its pods can alter that; absent if
// the node is in no group.
const (
	settled = 1 << 14
	absent  = -1 << 15
)

// position is a node's group and its place in the bucket there.
type position struct {
	group int32
	place int32
}

// newRanking reads the whole cluster for a plan. From then on the ranking costs a look at every
// placement, which is why a class has to deserve one; see earn.go.
func newRanking(ix *index, space *rankScratch, p *plan) *ranking {
	r := &ranking{sheet: sheet{ix: ix, scratch: &space.sheetScratch, plan: p}, space: space}
	r.rebuild()
	return r
}

// bytes is about how much memory the ranking takes.
func (r *ranking) bytes() int {
	const alone = 8 << 10 // for a cluster of any size
	n := alone + 8*len(r.fine) + 2*len(r.bucket) + 8*len(r.at) + len(r.counted.in.bits)
	if r.flat == nil {
		// The buckets, half as large again as what is in them.
		n += 6*len(r.bucket) + 24*(r.plan.maxRoom+1)*len(r.groups)
	}
	for _, t := range r.tallies {
		n += 8*len(t.count) + 4*len(t.included)
	}
	n += effectBytes*len(r.counted.effects) + len(r.key.signature) + bulkBytes*r.plan.example.Class.Bulk
	return n
}

// effectBytes is about how much memory a class takes in countedPods.effects.
const effectBytes = 64

// rebuild reads the whole cluster anew.
func (r *ranking) rebuild() {
	c := r.ix.c
	r.seen = c.Log.Len()
	r.rebuilds++
	r.at, r.bucket = nil, make([]int16, len(c.Nodes))
	if r.fine = nil; r.plan.exact {
		r.fine = make([]int64, len(c.Nodes))
	}

	r.statics, r.inStatics = nil, staticTable{byKey: map[staticKey]int32{}}
	r.groups, r.inGroups = nil, groupTable{byKey: map[groupKey]int32{}, byLong: map[string]int32{}, last: none}
	r.reasons = reasonTable{byText: map[string]int16{}, text: r.reasons.text}
	r.countTallies()
	for i := range r.bucket {
		r.bucket[i] = absent
	}

	r.flat, r.live, r.settledOnes = nil, none, map[int]int32{}
	if len(r.tallies) == 0 {
		r.flat = newSummit(r.bucket)
	} else {
		r.at = make([]position, len(c.Nodes))
	}

	r.ix.meter.Work += effort.CostOfBulk(c, r.plan.example.Class)
	for _, n := range c.Nodes {
		if n != nil {
			r.groupNode(n, r.staticOf(n))
		}
	}
}

// unflatten switches to buckets, since there is a second live group.
func (r *ranking) unflatten() {
	at := make([]position, len(r.bucket))
	for i, bucket := range r.bucket {
		if bucket != absent {
			at[i].group = r.groupAt(int32(i))
		}
	}
	r.flat, r.at = nil, at
	for i, bucket := range r.bucket {
		if bucket >= 0 {
			r.groups[at[i].group].ok--
			r.putNode(int32(i), at[i].group, bucket)
		}
	}
}

// growTo makes space for new nodes.
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

// groupAt returns the group of a node that is not absent.
func (r *ranking) groupAt(node int32) int32 {
	switch {
	case r.flat == nil:
		return r.at[node].group
	case r.bucket[node] <= ^settled:
		return r.settledOnes[reasonIn(r.bucket[node])]
	}
	return r.live
}

// followPod counts a pod that came to a node or left it, first in the tallies, which may move other
// nodes to other groups, and then on its own node, which must be judged by the new counts.
func (r *ranking) followPod(change *cluster.Change, sign int64) {
	if len(r.tallies) > 0 {
		for _, e := range r.effectsOf(change.Class) {
			if domain, regroup := r.countPod(change.Node, e, sign, change.Terminating); regroup {
				r.tallies[e.tally].topology.eachNode(domain, r.regroupNode)
			}
		}
	}
	r.updateBucket(change.Node)
}

// updateBucket looks at a node whose pods changed. In most cases it stays in its bucket; otherwise
// it moves to another bucket of its group.
func (r *ranking) updateBucket(node int32) {
	before := r.bucket[node]
	if before <= ^settled {
		return
	}
	now := r.roomOf(node)
	switch {
	case now == before:
	case r.flat != nil && now >= 0 && before >= 0:
		r.bucket[node] = now
		r.flat.numberChanged(node, before)
	default:
		r.moveNode(node, now)
	}
}

// regroupNode puts a node where it belongs now.
func (r *ranking) regroupNode(node int32) { r.regroupNodeAs(node, false) }

// regroupNodeAs does so, and judges the node itself anew if it is another than before.
func (r *ranking) regroupNodeAs(node int32, another bool) {
	group, static := none, none
	if before := r.bucket[node]; before != absent {
		group = r.groupAt(node)
		static = r.groups[group].key.static
		r.takeNode(node)
		r.bucket[node] = absent
		if r.flat != nil {
			r.flat.numberChanged(node, before)
		}
	}

	if n := r.ix.c.Nodes[node]; n != nil {
		if another || static == none {
			static = r.staticOf(n)
		}
		r.groupNode(n, static)
	}

	if group != none {
		r.releaseGroup(group)
	}
}

// groupNode puts an absent node with this static into its group and bucket.
func (r *ranking) groupNode(n *cluster.Node, static int32) {
	r.ix.meter.Looked += 1 + len(r.tallies)
	r.ix.meter.Work += effort.CostOfSorting
	for len(r.values) < len(r.tallies) {
		r.values = append(r.values, 0)
	}

	clear(r.values)
	bucket := int16(0)
	if s := r.statics[static]; s.early != nil {
		bucket = s.bucket
	} else {
		bucket = r.roomOf(n.Index)
		for k, t := range r.tallies {
			r.values[k] = t.value(t.topology.domain[n.Index])
		}
	}

	group := r.groupOf(static, r.values)
	if r.flat != nil {
		switch {
		case bucket <= ^settled:
			r.settledOnes[reasonIn(bucket)] = group
		case r.live == none:
			r.live = group
		case r.live != group:
			r.unflatten()
		}
	}

	r.putNode(n.Index, group, bucket)
}

// roomOf judges the pods on a node and the room they leave: the bucket, or ^reason.
func (r *ranking) roomOf(node int32) int16 { return r.roomBut(node, "") }

// roomBut does so without one of the pods nominated to the node.
func (r *ranking) roomBut(node int32, but types.UID) int16 {
	n, balance := r.ix.c.Nodes[node], r.ix.balance[node]
	if balance < 0 && n != nil && r.plan.guestsInRoom() {
		if rejected := r.lacksNominatedRoom(n, but); rejected < 0 {
			return rejected
		}
	}
	if balance &^= hasGuests; r.plan.onlyRoom() {
		if bucket := r.plan.room.scoreNode(&r.ix.c.Rooms[node], balance); bucket >= 0 {
			return bucket
		}
	}
	if n == nil { // it has gone; the log will say so
		return ^0
	}
	for _, f := range r.plan.contents {
		if rejection := f.judge(n); rejection != nil {
			return ^r.reasonOf(f.name, rejection)
		}
	}
	if r.plan.room != nil {
		return r.plan.room.scoreNode(&r.ix.c.Rooms[node], balance)
	}
	var sum, fine int64
	for _, s := range r.plan.contentScores {
		score, finer := s.scoreFinely(n)
		sum += score * s.weight
		fine += finer * s.weight
	}
	if r.fine != nil {
		r.fine[node] = fine
	}
	return int16(sum)
}

// reasonOf returns the index of a reason; see reasonTable.
func (r *ranking) reasonOf(plugin string, rejection *plugins.Rejection) int16 {
	return r.reasons.indexOf(plugin, rejection, r.ix.limits.Reasons)
}

// moveNode moves a node to another bucket of its group.
func (r *ranking) moveNode(node int32, bucket int16) {
	group := r.groupAt(node)
	r.takeNode(node)
	r.putNode(node, group, bucket)
}
