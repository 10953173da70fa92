// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/berth-k8s/berth/internal/engine/decide/effort"

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
	return e.used > 0 && len(ca.effort)+len(ca.byClass) <= ca.limits.FewClasses ||
		e.work > ca.limits.RankingCost*len(ca.c.Nodes)*(1+e.tallies)/2 && e.last >= catching*e.every ||
		e.soon > 64+len(ca.c.Nodes)/32
}
