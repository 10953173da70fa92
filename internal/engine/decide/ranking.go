package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
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
	weight     int    // what cache.bytesOf said last

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

// reasonOf returns the index of a reason; see reasonTable.
func (r *ranking) reasonOf(plugin string, rejection *plugins.Rejection) int16 {
	return r.reasons.indexOf(plugin, rejection, r.ix.limits.Reasons)
}

// rankScratch is scratch space of one decision from a ranking. All rankings of a cache share it.
type rankScratch struct {
	sheetScratch
	best    []*group      // of bestGroups
	weights []float64     // of weighConstraints
	asked   []int32       // of askNodes and finestNodes
	recent  recentGroups  // of all rankings
	copy    *cluster.Node // of lacksNominatedRoom
}

// groupTable finds the groups of a ranking by what their nodes agree in.
//
// Each group that has nodes is in byKey or in byLong; the index of one that has lost its last node
// is in vacant, and its buckets, all empty, are kept for the group that gets the index next.
type groupTable struct {
	byKey  map[groupKey]int32
	byLong map[string]int32 // instead of byKey, if there are more tallies than a groupKey holds
	vacant []int32          // free indices in groups
	recent *recentGroups    // of byKey
}

// recentGroups are groups that were found last, of all rankings of a cache: most nodes are like one
// of those right before.
type recentGroups [64]recentGroup

type recentGroup struct {
	of    *groupTable
	key   groupKey
	index int32
}

// staticKey is what two nodes must have in common to share a static. Of a node that an early filter
// rejects, only the reason counts; early and late are -1 where there is none.
type staticKey struct {
	early, late            int16
	taint, affinity, image int64
	scored, hostname       bool
}

// staticTable finds the statics of a ranking: what nodes without their pods score, and what rejects
// them. Most nodes are like the one before, so the latest is looked at first.
type staticTable struct {
	byKey  map[staticKey]int32
	latest staticKey // that staticOf returned, and
	index  int32     // its index
}

// countedPods is what a ranking knows of the pods that its tallies count.
//
// A pod counts by the look of its class, and spread tallies count the pods of those nodes only that
// their constraint includes. in says which; it holds as long as no node has come into another
// domain, which inDomains tells.
type countedPods struct {
	in        marks                  // of each node, the spread tallies that count its pods
	inDomains int                    // what domainChanges was when the tallies were counted
	effects   map[[2]uint64][]effect // by PodClass.Look of placed pods
	// A pod that moves comes and goes several times in a row, so what was asked for last is looked
	// at first.
	look   [2]uint64
	latest []effect // of look
	places []effect // by tally of the plan: its tally here, and its part of that
	marks  tallySet // scratch space of keepsTallies
}

// reasonIn returns the reason in a negative bucket.
func reasonIn(bucket int16) int { return int(^bucket) & (settled - 1) }

// effectsOf returns what a pod of the class counts in the tallies.
func (r *ranking) effectsOf(class *cluster.PodClass) []effect {
	if r.counted.look == class.Look {
		return r.counted.latest
	}
	effects, known := r.counted.effects[class.Look]
	if !known {
		const few = 1 << 10
		if len(r.counted.effects) >= few+2*r.ix.placed.looks.Len() { // most are of looks whose pods are gone
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
