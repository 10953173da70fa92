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

// maxMembers bounds the number of remembered classes; many have a single pod and never recur.
const maxMembers = 1 << 14

// bytesOf estimates the memory of a ranking, including the victims cached for its classes.
func (ca *cache) bytesOf(r *ranking) int {
	n, known := r.bytes(), ca.candidates[r]
	switch {
	case known == nil:
	case known.rebuilds != r.rebuilds: // the rebuild has renumbered groups and reasons
		delete(ca.candidates, r)
	default:
		n += known.bytes()
	}
	return n
}

// classEffort is the cost of the surveys of a class so far.
type classEffort struct {
	count, work   int
	tallies, last int    // number of tallies and amount of work of the last expensive survey
	every         int    // decisions between the previous use and the last expensive survey
	soon          int    // number of cheap surveys made at most a few decisions after the previous use
	used          uint64 // decider's clock at the last use
}

// idle is the number of decisions after which unused data is dropped. Spread over that number of
// decisions, the cost of rebuilding the data is small. often is the number of decisions between two
// scans for idle data.
const idle, often = 1 << 10, 1 << 8

// hasRanking reports whether a class is decided from a ranking, because it has a ranking or is due
// to get one.
func (ca *cache) hasRanking(class *cluster.PodClass) bool {
	m, known := ca.byClass[class.ID]
	if known && m.dropped { // the class needs new effort to get another ranking
		delete(ca.byClass, class.ID)
		delete(ca.effort, class.ID)
		return false
	}
	return known || ca.deservesRanking(ca.effort[class.ID])
}

// rankingFor returns the plan for the pod's class, and the up-to-date ranking of the class. The
// ranking is nil if the class is not decided from a ranking.
func (ca *cache) rankingFor(p *cluster.Pod) (*ranking, *plan) {
	ca.ix.followLog()
	ca.weighUsed()
	now, m := ca.ix.versionsFor(p.Class), ca.byClass[p.Class.ID]
	if m != nil && m.terms == ca.ix.terms.version {
		now.terms = m.versions.terms
	} else {
		now.terms = ca.ix.terms.versionFor(p.Class.Labels)
	}
	if m != nil && m.versions.images != now.images && !m.dropped && (ca.planner.scoreKey == nil || ca.planner.scoreKey(p) == m.plan.scoreKey) {
		m.versions.images = now.images // the change does not concern images of the class
	}
	// A ranking counts new pods correctly for a class if its plan was made for this class, or after
	// the last change of the terms.
	if m != nil && m.versions == now && !m.dropped && (m.plan.example.Class == p.Class || m.ranking.terms == ca.ix.terms.version) {
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
		ca.dropRanking(r) // the selectors may now match different pods
		known = false
	}
	if known {
		// The class for which the ranking was made may now belong to another ranking, because a
		// newer term may match that class but not this class. Make the counts follow a class that
		// belongs to this ranking.
		r.plan = pl
		r.terms = ca.ix.terms.version
		if p.Class.Bulk > 0 { // previous classes of the ranking may have been smaller
			delete(ca.rankings, key)
			ca.makeRoom(r)
			ca.rankings[key] = r
		}
		r.catchUp()
	} else {
		r = ca.makeRanking(key, pl)
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

// patience returns the number of decisions in effort.Limits.Patience; 0 in a small cluster.
func (ca *cache) patience() int {
	if len(ca.c.Nodes) < ca.limits.ManyNodes {
		return 0
	}
	return max(ca.limits.Patience, len(ca.c.Nodes)>>13)
}

// makeRanking returns a ranking for a plan. In a large cluster, it takes over the ranking of other
// classes if that has the same buckets, and has not been used for a while. After Decider.KeepFor,
// it also takes over a ranking that was used by the previous decision.
//
// For example, the pods of an app spread over zones, and then those of another app. The nodes of a
// zone are a group for both, so only the pods in each zone are counted again.
func (ca *cache) makeRanking(key rankingKey, pl *plan) *ranking {
	found, wait := ca.oldest(func(r *ranking) bool { return r.suits(key, pl) }), uint64(ca.patience())
	if ca.idle > idle {
		wait = 1
	}
	if found != nil && wait > 0 && ca.meter.Clock-found.used >= wait {
		if found.catchUp(); found.suits(key, pl) { // a rebuild may have grouped the nodes in another way
			r := *found
			ca.dropRanking(found)
			r.weight = 0
			r.countAnew(pl)
			return &r
		}
	}
	return newRanking(ca.ix, &ca.space, pl)
}

// candidatesFor returns the victims cached for the classes of a ranking.
func (ca *cache) candidatesFor(r *ranking) *candidates {
	known := ca.candidates[r]
	if known == nil || known.rebuilds != r.rebuilds {
		known = &candidates{rebuilds: r.rebuilds}
		ca.candidates[r] = known
	}
	return known
}

// recordCost records the cost of a survey for a class; see deservesRanking.
func (ca *cache) recordCost(known *recentPlan, s *survey) {
	const little = 64 // not worth recording
	s.work += s.b.looked
	ca.meter.Work += s.work / effort.LooksAJudgement
	if ca.meter.Looked += s.work; s.work < little && !known.soon {
		return
	}
	if known.effort != nil && s.work >= little {
		known.effort.work += s.work
	}

	e := ca.effort[known.class.ID]
	e.count++
	if s.work >= little {
		e.work += s.work
		e.tallies, e.last, e.every = len(s.tallies), s.work, int(min(ca.meter.Clock-e.used, idle))
	} else {
		e.soon++
	}
	e.used = ca.meter.Clock
	ca.effort[known.class.ID] = e
}

// deservesRanking reports whether a class with the given effort gets a ranking: if there are few
// classes, if its surveys have cost as much as a ranking would and its pods keep arriving, or if it
// had enough cheap surveys in quick succession. In the last case, few changes occur between
// decisions, and choosing from a ranking is faster than even the cheapest survey. A ranking that
// must catch up on the placements of many other classes is slower than a cheap survey.
func (ca *cache) deservesRanking(e classEffort) bool {
	catching := 2 * ca.limits.RankingCost // cost of following one placement with a ranking, in looks
	return e.count > ca.patience() && len(ca.effort)+len(ca.byClass) <= ca.limits.FewClasses ||
		e.work > ca.limits.RankingCost*len(ca.c.Nodes)*(1+e.tallies)/2 && e.last >= catching*e.every ||
		e.soon > 64+len(ca.c.Nodes)/32
}

// recentPlans caches the plan made last for each class, by class modulo recent.
//
// A filled entry has a class and its plan, and its base is nil or in cache.bases. renewPlan, which
// precedes every use, invalidates the plan; loseBase invalidates a base.
type recentPlans [recent]recentPlan

// recentPlan is the plan made for a class, together with the base used to decide it.
//
// It is valid while versions are unchanged. base may be replaced without a new plan if nodes
// change, or if sums start or cease to pay off.
type recentPlan struct {
	class    *cluster.PodClass
	full     *plan         // plan with a tally for everything relevant
	plan     *plan         // full, or a copy of full without the tallies summed by base
	versions versions      // versions with which the plan was made
	terms    int           // latest version of all terms for which versions.terms is known to be valid
	nodes    uint64        // version of the nodes when base was looked up; 0: base must be looked up
	base     *base         // nil: no base
	axisOf   []int         // by tally
	effort   *sharedEffort // effort for foreign terms; nil if the terms are few or summed by a base
	used     uint64        // decider's clock at the last use
	soon     bool          // the last two uses were at most a few decisions apart
}

// slotOf returns the slot of a class, which may hold another class. Unusually large classes share
// few slots.
func (plans *recentPlans) slotOf(class *cluster.PodClass) *recentPlan {
	slot := uint32(class.ID) % recent
	if class.Bulk > bulky {
		slot %= recentBulky
	}
	return &plans[slot]
}

// drop empties the filled entries that match.
func (plans *recentPlans) drop(matches func(*recentPlan) bool) {
	for i := range plans {
		if known := &plans[i]; known.class != nil && matches(known) {
			*known = recentPlan{}
		}
	}
}

// loseBase removes a base from the entries, which must not retain its memory. Their next use looks
// up a base again.
func (plans *recentPlans) loseBase(b *base) {
	for i := range plans {
		if known := &plans[i]; known.base == b {
			known.base, known.nodes = nil, 0
		}
	}
}
