// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
)

// cache holds the data structures that speed up decisions: rankings for classes that have cost
// enough effort, bases for the other classes, and plans for both. Only the cache creates these
// structures, and it drops structures that are no longer worth their memory.
//
// All cached data can be rebuilt from the cluster, so dropping it costs time but never changes a
// result. However, a ranking and a base draw different random numbers, so in a replay each class
// must get its ranking at the same decision.
type cache struct {
	c       *cluster.Cluster
	limits  *effort.Limits
	meter   *effort.Meter
	ix      *index
	planner *planner
	space   rankScratch // shared by all rankings

	// Classes without a relevant difference share a ranking, for example the members of a
	// StatefulSet, or pods that differ only in their volumes.
	rankings    map[rankingKey]*ranking
	weight      int               // total size of rankings: the sum of ranking.weight
	using       *ranking          // ranking used last; its weight may be outdated
	idle        uint64            // the constant idle, unless Decider.KeepFor sets another value
	latest      []*ranking        // ring of the recently used rankings, by decision modulo idle+1
	byClass     map[int32]*member // by class: its ranking
	mostMembers int               // largest size of byClass; see cluster.Shrunk

	// candidates caches the victims found for classes that have preempted, by ranking.
	candidates map[*ranking]*candidates

	plans recentPlans
	bases map[string]*base // by key made by findBase

	effort        map[int32]classEffort    // by class
	sharedEfforts map[uint64]*sharedEffort // by a hash of effects of foreign terms; see termEffects.describeTerms

	unused uint64 // decider's clock at the last call of dropUnused

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

// member records the ranking last found for a class.
//
// The ranking may have been dropped in the meantime. The class then must accumulate new effort
// before it gets another ranking.
type member struct {
	*ranking
	versions versions // versions with which the ranking was found
	terms    int      // latest version of all terms for which versions.terms is known to be valid
	asked    uint64   // decider's clock at the last decision of the class
}

// seesFor reports whether the ranking counts new pods correctly for the class: its plan was made
// either for this class, or after the last change of the terms.
func (m *member) seesFor(class *cluster.PodClass) bool {
	return m.plan.example.Class == class || m.ranking.terms == m.ix.terms.version
}

// maxMembers bounds the number of remembered classes; many have a single pod and never recur.
const maxMembers = 1 << 14

// forgetCandidates drops the victims cached for a ranking. They become invalid when the ranking is
// dropped, or when a rebuild renumbers its groups and reasons.
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

// classEffort is the cost of the surveys of a class so far.
type classEffort struct {
	work          int
	tallies, last int    // number of tallies and amount of work of the last expensive survey
	every         int    // decisions between the previous use and the last expensive survey
	soon          int    // number of cheap surveys made at most a few decisions after the previous use
	used          uint64 // decider's clock at the last use
}

// idle is the number of decisions after which unused data is dropped. Spread over that number of
// decisions, the cost of rebuilding the data is small. often is the number of decisions between two
// scans for idle data.
const idle, often = 1 << 10, 1 << 8
