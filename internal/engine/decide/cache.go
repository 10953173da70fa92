// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
)

// cache holds the data structures that speed up decisions: rankings for classes with enough effort,
// bases for the other classes, and plans for both. Only the cache creates them, and drops them when
// they are no longer worth their memory.
//
// All of it can be rebuilt from the cluster, so dropping costs time and never changes a result.
// However, a ranking and a base draw different random numbers, so in a replay each class must get
// its ranking at the same decision.
type cache struct {
	c       *cluster.Cluster
	limits  *effort.Limits
	meter   *effort.Meter
	ix      *index
	planner *planner
	space   rankScratch // shared by all rankings

	// Classes without a relevant difference share a ranking: members of a StatefulSet, or pods with
	// a volume each.
	rankings    map[rankingKey]*ranking
	weight      int               // of rankings, the sum of ranking.weight
	using       *ranking          // used last; its weight may have changed since
	idle        uint64            // the constant idle, unless set by Decider.KeepFor
	latest      []*ranking        // ring of the rankings used, by decision modulo idle+1
	byClass     map[int32]*member // the ranking of each class
	mostMembers int               // of byClass; see cluster.Shrunk

	// candidates caches the victims found for classes that have preempted, by ranking.
	candidates map[*ranking]*candidates

	plans [recent]recentPlan // by class, modulo their number
	bases map[string]*base   // by the key that findBase makes

	effort        map[int32]classEffort    // by class
	sharedEfforts map[uint64]*sharedEffort // by a hash of effects of foreign terms; see termEffects.describeTerms

	unused uint64 // last call of dropUnused, by the decider's clock

	axes []topologyAxis // scratch space
	key  []byte         // scratch space
}

func newCache(ix *index, planner *planner) *cache {
	return &cache{
		c: ix.c, limits: ix.limits, meter: ix.meter, ix: ix, planner: planner,
		idle:     idle,
		rankings: map[rankingKey]*ranking{}, byClass: map[int32]*member{},
		bases: map[string]*base{}, candidates: map[*ranking]*candidates{},
		effort: map[int32]classEffort{}, sharedEfforts: map[uint64]*sharedEffort{},
	}
}

// member is the ranking last found for a class.
//
// The ranking may have been dropped since. The class then needs new effort to get another one.
type member struct {
	*ranking
	versions versions // versions from which the ranking was found
	terms    int      // version of all terms up to which versions.terms is known to hold
	asked    uint64   // when the class was last decided, by the decider's clock
}

// seesFor reports whether the ranking counts new pods correctly for the class: its plan was made
// for this class, or for another one since the last change of the terms.
func (m *member) seesFor(class *cluster.PodClass) bool {
	return m.plan.example.Class == class || m.ranking.terms == m.ix.terms.version
}

// maxMembers bounds the number of remembered classes; many have a single pod and never recur.
const maxMembers = 1 << 14

// forgetCandidates forgets the victims cached for a ranking: the ranking was dropped, a rebuild
// renumbered its groups and reasons, or the victims are valid for one pod only.
func (ca *cache) forgetCandidates(r *ranking) { delete(ca.candidates, r) }

// bytesOf estimates the memory of a ranking, including the victims cached for its classes.
func (ca *cache) bytesOf(r *ranking) int {
	n, known := r.bytes(), ca.candidates[r]
	switch {
	case known == nil:
	case known.rebuilds != r.rebuilds:
		ca.forgetCandidates(r)
	default:
		n += known.bytes()
	}
	return n
}

// recentPlan is the plan made for a class, together with the base used to decide it.
//
// It is kept while versions are equal. base may be replaced without a new plan, after a change of
// the nodes or when sums start or cease to pay off.
type recentPlan struct {
	class    *cluster.PodClass
	full     *plan         // with a tally for everything relevant
	plan     *plan         // full, or full without the tallies summed by base
	versions versions      // versions from which the plan was made
	terms    int           // version of all terms up to which versions.terms is known to hold
	nodes    uint64        // version of the nodes when the base was found
	base     *base         // nil: there is none
	axisOf   []int         // by tally
	effort   *sharedEffort // of foreign terms; nil if small, or summed by a base
	used     uint64        // when, by the decider's clock
	soon     bool          // the use before that was at most few decisions earlier
}

// classEffort is the cost of the surveys of a class so far.
type classEffort struct {
	work          int
	tallies, last int    // number of tallies, and work, of the last expensive survey
	every         int    // decisions between that survey and the use before it
	soon          int    // cheap surveys, each soon after the use before it
	used          uint64 // when, by the decider's clock
}

// idle is the number of decisions after which unused data is dropped: spread over as many
// decisions, rebuilding it costs little. often is the number of decisions between two scans for
// idle data.
const idle, often = 1 << 10, 1 << 8
