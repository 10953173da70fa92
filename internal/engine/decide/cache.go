// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
)

// cache holds the data structures behind decisions as long as they are worth their memory: rankings
// for the classes that earned one, bases for the rest, plans for both. Only the cache decides about
// their creation and removal.
//
// All of it can be rebuilt from the cluster, so dropping costs time and never changes a result. But
// a ranking and a base make different draws, so the moment when a class gets its ranking is part of
// a replay.
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
	using       *ranking          // what was used last, and may weigh more or less by now
	idle        uint64            // that many decisions, unless Decider.KeepFor is set
	latest      []*ranking        // by decision, modulo idle+1: the plan used; grows with the first
	byClass     map[int32]*member // the ranking of each class
	mostMembers int               // of byClass; see cluster.Shrunk

	// candidates caches the victims found for classes that have preempted, by ranking.
	candidates map[*ranking]*candidates

	plans [recent]recentPlan // by class, modulo their number
	bases map[string]*base   // by the key that findBase makes

	effort        map[int32]classEffort    // by class
	sharedEfforts map[uint64]*sharedEffort // by a hash of effects of foreign terms; see termEffects.describeTerms

	unused uint64 // what was not used since is dropped by dropUnused, by the decider's clock

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
// The ranking may have been dropped since: then the class must earn another one.
type member struct {
	*ranking
	versions versions // what it was found from
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
// renumbered its groups and reasons, or the victims would hold for one pod only.
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
	full     *plan         // with a tally for all that matters
	plan     *plan         // the same, or without what the base sums
	versions versions      // what the plan was made from
	terms    int           // version of all terms up to which versions.terms is known to hold
	nodes    uint64        // version of the nodes when the base was found
	base     *base         // nil: there is none
	axisOf   []int         // by tally
	effort   *sharedEffort // for effects of foreign terms; nil: it is little, or a base sums it
	used     uint64        // when, by the decider's clock
	soon     bool          // it had been used within the few decisions before that
}

// classEffort is the cost of the surveys of a class so far.
type classEffort struct {
	work          int
	tallies, last int    // tallies and work of the last of them
	every         int    // decisions since the one before that
	soon          int    // decisions that looked at next to nothing, each not long after the one before
	used          uint64 // when, by the decider's clock
}

// idle is the number of decisions after which unused data is dropped: spread over as many
// decisions, rebuilding it costs little. often is the number of decisions between two scans for
// idle data.
const idle, often = 1 << 10, 1 << 8
