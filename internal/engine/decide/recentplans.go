// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/berth-k8s/berth/internal/engine/cluster"

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
