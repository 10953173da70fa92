package decide

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
)

// cache keeps what decisions are made from while it is worth its memory: rankings for classes that
// deserve one, bases for all others, plans for both. It alone decides what is made and what is
// dropped.
//
// All of it can be made again from the cluster: dropping costs time and never changes an answer.
// But draws differ between a ranking and a base, so when a class gets its ranking is part of what
// a replay repeats.
type cache struct {
	c       *cluster.Cluster
	limits  *effort.Limits
	meter   *effort.Meter
	ix      *index
	planner *planner
	space   rankScratch // shared by all rankings

	// Classes that differ in nothing that matters share a ranking: members of a StatefulSet, or
	// pods with volumes of their own.
	rankings    map[rankingKey]*ranking
	weight      int               // of rankings, the sum of ranking.weight
	using       *ranking          // what was used last, and may weigh more or less by now
	idle        uint64            // that many decisions, unless Decider.KeepFor says otherwise
	latest      []*ranking        // by decision, modulo idle+1: the one that it used; grows with the first
	byClass     map[int32]*member // the ranking of each class
	mostMembers int               // of byClass; see cluster.Shrunk

	// candidates remember the victims of classes that have preempted, by their ranking.
	candidates map[*ranking]*candidates

	plans [recent]recentPlan // by class, modulo their number
	bases map[string]*base   // by the key that findBase makes

	effort     map[int32]classEffort  // by class
	saidEffort map[uint64]*saidEffort // by a hash of what strangers' terms say; see said.describeTerms

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
		effort: map[int32]classEffort{}, saidEffort: map[uint64]*saidEffort{},
	}
}

// member is the ranking that was last found for a class.
//
// It may refer to a ranking that was dropped: then the class has to earn another one.
type member struct {
	*ranking
	versions versions // what it was found from
	terms    int      // version of all terms up to which versions.terms is known to hold
	asked    uint64   // when the class was last decided, by the decider's clock
}

// seesFor reports whether the ranking counts new pods the way the class needs: its plan was made
// for this class, or for another one since the last change of the terms.
func (m *member) seesFor(class *cluster.PodClass) bool {
	return m.plan.example.Class == class || m.ranking.terms == m.ix.terms.version
}

// maxMembers bounds how many classes are remembered; many have one pod and never come back.
const maxMembers = 1 << 14

// forgetCandidates forgets the victims that are remembered with a ranking: it is dropped, or its
// groups and reasons have other numbers since it was rebuilt, or they would hold for one pod only.
func (ca *cache) forgetCandidates(r *ranking) { delete(ca.candidates, r) }

// bytesOf is about how much memory a ranking takes, with the victims that are remembered for its
// classes.
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

// recentPlan is a plan that was made for a class, and the base that it is decided from.
//
// It stays while versions are equal. base may be replaced without a new plan, when nodes changed
// or when sums begin or cease to be worth it.
type recentPlan struct {
	class    *cluster.PodClass
	full     *plan       // with a tally for all that matters
	plan     *plan       // the same, or without what the base sums
	versions versions    // what the plan was made from
	terms    int         // version of all terms up to which versions.terms is known to hold
	nodes    uint64      // version of the nodes when the base was found
	base     *base       // nil: there is none
	axisOf   []int       // by tally
	said     *saidEffort // for what strangers' terms say; nil: it is little, or a base sums it
	used     uint64      // when, by the decider's clock
	soon     bool        // it had been used within the few decisions before that
}

// classEffort is what the surveys of a class have cost.
type classEffort struct {
	work          int
	tallies, last int    // tallies and work of the last of them
	every         int    // decisions since the one before that
	soon          int    // decisions that looked at next to nothing, each not long after the one before
	used          uint64 // when, by the decider's clock
}

// idle is the number of decisions after which something is dropped that none of them used: making
// it again then costs each of them little. often is how many decisions there are between two
// searches for such things.
const idle, often = 1 << 10, 1 << 8
