package decide

import "github.com/berth-k8s/berth/internal/engine/decide/effort"

// recordCost records what a survey for a class cost. A class whose surveys have cost as much as a
// ranking would, and whose pods keep coming, gets one.
func (ca *cache) recordCost(known *recentPlan, s *survey) {
	const little = 64 // not worth recording
	s.work += s.b.looked
	ca.meter.Work += s.work / effort.LooksAJudgement
	if ca.meter.Looked += s.work; s.work < little && !known.soon {
		return
	}
	if known.said != nil && s.work >= little {
		known.said.work += s.work
	}

	e := ca.effort[known.class.ID]
	if s.work >= little {
		e.work += s.work
		e.tallies, e.last, e.every = len(s.tallies), s.work, int(min(ca.meter.Clock-e.used, idle))
	} else {
		e.soon++
	}
	e.used = ca.meter.Clock
	ca.effort[known.class.ID] = e
}

// deservesRanking reports whether a class with that effort is to have a ranking. A choice from one
// that has little to catch up on takes less than a survey that looks at next to nothing; after so
// many of these it will have paid for itself. One that has to catch up on the placements of many
// other classes takes longer than a survey that looks at little.
func (ca *cache) deservesRanking(e classEffort) bool {
	catching := 2 * ca.limits.RankingCost // looks that a placement costs a ranking
	return e.used > 0 && len(ca.effort)+len(ca.byClass) <= ca.limits.FewClasses ||
		e.work > ca.limits.RankingCost*len(ca.c.Nodes)*(1+e.tallies)/2 && e.last >= catching*e.every ||
		e.soon > 64+len(ca.c.Nodes)/32
}
