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
	latest      [idle + 1]*ranking // by decision, modulo their number: the one that it used
	byClass     map[int32]*member  // the ranking of each class
	mostMembers int                // of byClass; see cluster.Shrunk

	// candidates remember the victims of classes that have preempted, by their ranking.
	candidates map[*ranking]*candidates

	plans [recent]recentPlan // by class, modulo their number
	bases map[string]*base   // by the key that findBase makes

	effort     map[int32]classEffort  // by class
	saidEffort map[uint64]*saidEffort // by a hash of what strangers' terms say; see said.describeTerms

	axes []topologyAxis // scratch space
	key  []byte         // scratch space
}

func newCache(ix *index, planner *planner) *cache {
	return &cache{
		c: ix.c, limits: ix.limits, meter: ix.meter, ix: ix, planner: planner,
		rankings: map[rankingKey]*ranking{}, byClass: map[int32]*member{},
		bases: map[string]*base{}, candidates: map[*ranking]*candidates{},
		effort: map[int32]classEffort{}, saidEffort: map[uint64]*saidEffort{},
	}
}

// hasRanking reports whether a class is decided from a ranking: it has one, or has earned it.
func (ca *cache) hasRanking(class *cluster.PodClass) bool {
	m, known := ca.byClass[class.ID]
	if known && m.dropped { // it has to be earned again
		delete(ca.byClass, class.ID)
		delete(ca.effort, class.ID)
		return false
	}
	return known || ca.deservesRanking(ca.effort[class.ID])
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

// rankingFor returns the plan for the pod's class and, if the class is decided from a ranking, that
// ranking, brought up to date; otherwise nil.
func (ca *cache) rankingFor(p *cluster.Pod) (*ranking, *plan) {
	ca.ix.followLog()
	now, m := ca.ix.versionsFor(p.Class), ca.byClass[p.Class.ID]
	if m != nil && m.terms == ca.ix.terms.version {
		now.terms = m.versions.terms
	} else {
		now.terms = ca.ix.terms.versionFor(p.Class.Labels)
	}
	if m != nil && m.versions.images != now.images && !m.dropped && (ca.planner.worth == nil || ca.planner.worth(p) == m.plan.worth) {
		m.versions.images = now.images // none of the class's
	}
	if m != nil && m.versions == now && !m.dropped && m.seesFor(p.Class) {
		m.terms = ca.ix.terms.version
		m.asked = ca.meter.Clock
		ca.noteUse(m.ranking)
		m.catchUp()
		return m.ranking, m.plan
	}
	pl := ca.planner.newPlan(p)
	if pl.way != ranked {
		delete(ca.byClass, p.Class.ID)
		return nil, pl
	}
	key := rankingKey{p.Class.Needs, ca.planner.signatureOf(pl)}
	r, known := ca.rankings[key]
	if known && r.namespaces != now.namespaces && len(pl.tallies) > 0 {
		ca.dropRanking(r) // the same selectors may match other pods now
		known = false
	}
	if known {
		// The class that the ranking was made for may belong to another one by now: a newer term
		// may match that class and not this one. From now on the counts follow a class that belongs
		// here.
		r.plan = pl
		r.terms = ca.ix.terms.version
		if p.Class.Bulk > 0 { // the classes before it may have been smaller
			delete(ca.rankings, key)
			ca.makeRoom(r)
			ca.rankings[key] = r
		}
		r.catchUp()
	} else {
		r = newRanking(ca.ix, &ca.space, pl)
		r.key, r.terms = key, ca.ix.terms.version
		ca.makeRoom(r)
		ca.rankings[key] = r
	}
	r.namespaces = now.namespaces
	ca.noteUse(r)
	if len(ca.byClass) >= maxMembers {
		ca.byClass = map[int32]*member{}
	}
	ca.byClass[p.Class.ID] = &member{r, now, ca.ix.terms.version, ca.meter.Clock}
	return r, pl
}

// candidatesFor returns what is remembered of the victims for the classes of a ranking.
func (ca *cache) candidatesFor(r *ranking) *candidates {
	known := ca.candidates[r]
	if known == nil || known.rebuilds != r.rebuilds {
		known = &candidates{rebuilds: r.rebuilds}
		ca.candidates[r] = known
	}
	return known
}

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
