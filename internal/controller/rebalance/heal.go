// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// setupHeal makes the ledger of violated constraints the goal's gauge. Soft spread constraints have
// a separate ledger.
func (st *strategy) setupHeal() {
	w := st.w
	ledger := w.hard
	if st.Heal.Soft {
		ledger = newLedger(w, "uneven spread", v1.ScheduleAnyway)
	}
	st.gauge, st.among = ledger, ledger.podsInExcess
	st.says = func(p *pod) string { return cmp.Or(ledger.describeViolation(p), "violates a constraint") }
	st.gain = func(p *pod) int64 {
		if !st.healsPod(ledger, p) {
			return 0
		}
		return removalGain(ledger, p)
	}
	// A goal for a single kind of constraint corresponds to a plugin of the descheduler, and uses
	// the order of that plugin.
	if st.Heal.Only != "" {
		st.order = byPriority
	}
}

// healsPod reports whether a pod violates a constraint within the goal's scope. It is a filter for
// removalGain, which does not distinguish kinds of constraints: a pod without a violation of the
// kind is not moved, even if its removal would lower the ledger for another reason.
func (st *strategy) healsPod(l *ledger, p *pod) bool {
	k := l.concernOf(p)
	switch st.Heal.Only {
	case NodeAffinity:
		return k.judge != nil && k.judge(p.Node) != nil
	case NodeTaints:
		return slices.ContainsFunc(repellingTaints(p.Pod, p.Node),
			func(t *v1.Taint) bool { return st.Heal.Taints == nil || st.Heal.Taints(t) })
	case AntiAffinity:
		return slices.ContainsFunc(k.groups, func(g *group) bool { return g.anti && k.own[g] && g.excessWithout(k, p) < g.excess })
	case Spread:
		return slices.ContainsFunc(k.groups, func(g *group) bool { return g.spread != nil && g.excessWithout(k, p) < g.excess })
	}
	return l.static > 0 && countMisfits(k, p, p.Node) > 0 ||
		slices.ContainsFunc(k.groups, func(g *group) bool { return g.excess > 0 }) // removing any other pod lowers no excess
}

// excessWithout returns the group's excess without the pod. The group is restored afterwards.
func (g *group) excessWithout(k *concern, p *pod) int64 {
	if !g.movePod(p.Node, k.own[g], k.counts[g], -1) {
		return g.excess
	}
	defer g.movePod(p.Node, k.own[g], k.counts[g], 1)
	return g.measureExcess()
}
