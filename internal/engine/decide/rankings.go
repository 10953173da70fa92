// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/berth-k8s/berth/internal/engine/cluster"

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

// candidatesFor returns the victims cached for the classes of a ranking.
func (ca *cache) candidatesFor(r *ranking) *candidates {
	known := ca.candidates[r]
	if known == nil || known.rebuilds != r.rebuilds {
		known = &candidates{rebuilds: r.rebuilds}
		ca.candidates[r] = known
	}
	return known
}
