// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"maps"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// bytesPerNode bounds the memory of all rankings together, in bytes per node of the cluster. In
// small clusters, the bound is leastBytes instead, which suffices for the rankings of 500 plain
// classes on 100,000 nodes.
const (
	bytesPerNode = 512
	leastBytes   = 128 << 20
)

// noteUse records that the current decision uses the ranking.
func (ca *cache) noteUse(r *ranking) {
	ca.using = r
	r.used = ca.meter.Clock
	*ca.usedNow() = r
}

// usedNow returns the slot for the ranking of the current decision. Until noteUse records the
// current decision, the slot holds the ranking used idle+1 decisions ago.
func (ca *cache) usedNow() **ranking {
	at := ca.meter.Clock % (ca.idle + 1)
	for uint64(len(ca.latest)) <= at {
		ca.latest = append(ca.latest, nil)
	}
	return &ca.latest[at]
}

// dropRanking drops a ranking. It empties the ranking in place, because members may still refer to
// it: these members then find the field dropped set, cannot read stale data, and retain none of the
// contents.
func (ca *cache) dropRanking(r *ranking) {
	delete(ca.rankings, r.key)
	ca.weight -= r.weight
	delete(ca.candidates, r)
	*r = ranking{dropped: true}
}

// dropIdle drops the ranking that has just become idle. Rankings take most of the memory, so they
// do not wait for dropAllIdle.
func (ca *cache) dropIdle() {
	oldest := ca.usedNow()
	if r := *oldest; r != nil && !r.dropped && ca.meter.Clock-r.used > ca.idle {
		ca.dropRanking(r)
	}
	*oldest = nil
}

// dropAllIdle drops all idle data.
func (ca *cache) dropAllIdle() {
	for _, r := range ca.rankings {
		if ca.meter.Clock-r.used > ca.idle {
			ca.dropRanking(r)
		}
	}

	maps.DeleteFunc(ca.effort, func(_ int32, e classEffort) bool { return ca.meter.Clock-e.used > ca.idle })
	ca.byClass = cluster.Shrunk(ca.byClass, &ca.mostMembers)
	maps.DeleteFunc(ca.byClass, func(_ int32, m *member) bool { return m.dropped || ca.meter.Clock-m.asked > ca.idle })
	ca.byClass = cluster.Shrunk(ca.byClass, &ca.mostMembers)
	for key, b := range ca.bases {
		if ca.meter.Clock-b.used > ca.idle {
			ca.dropBase(key)
		}
	}

	maps.DeleteFunc(ca.planner.skeletons, func(_ string, sk *skeleton) bool { return ca.meter.Clock-sk.used > ca.idle })
	maps.DeleteFunc(ca.sharedEfforts, func(_ uint64, e *sharedEffort) bool { return ca.meter.Clock-e.used > ca.idle })
	ca.plans.drop(func(known *recentPlan) bool { return ca.meter.Clock-known.used > ca.idle })
	ca.dropTopologies(nil)
}

// dropUnused drops the data of large classes unused since its last call.
func (ca *cache) dropUnused() {
	for _, r := range ca.rankings {
		if r.plan.example.Class.Bulk > 0 && r.used <= ca.unused {
			ca.dropRanking(r)
		}
	}
	ca.loseDropped()

	maps.DeleteFunc(ca.planner.skeletons, func(_ string, sk *skeleton) bool { return sk.bulk() > 0 && sk.used <= ca.unused })
	for key, b := range ca.bases {
		if b.plan.example.Class.Bulk > 0 && b.used <= ca.unused {
			ca.dropBase(key)
		}
	}
	ca.plans.drop(func(known *recentPlan) bool { return known.class.Bulk > 0 && known.used <= ca.unused })

	ca.ix.budgets.dropUnused(&ca.c.Budgets)
	ca.unused = ca.meter.Clock
}

// weighUsed updates the weight of the ranking used last. A ranking changes only while in use, so
// the weights of all other rankings are current.
func (ca *cache) weighUsed() {
	if r := ca.using; r != nil && !r.dropped {
		ca.weight -= r.weight
		r.weight = ca.bytesOf(r)
		ca.weight += r.weight
	}
}

// makeRoom drops the least recently used rankings until a new one fits.
func (ca *cache) makeRoom(r *ranking) {
	limit, total := ca.mostBytes(), ca.weight-r.weight+ca.bytesOf(r)
	if total > limit {
		defer ca.loseDropped()
	}
	for total > limit && len(ca.rankings) > 0 {
		oldest := ca.oldest(func(*ranking) bool { return true })
		total -= oldest.weight
		ca.dropRanking(oldest)
	}
}

// oldest returns the least recently used ranking that matches, or nil.
func (ca *cache) oldest(matches func(*ranking) bool) (oldest *ranking) {
	for _, r := range ca.rankings {
		if (oldest == nil || r.used < oldest.used) && matches(r) {
			oldest = r
		}
	}
	return oldest
}

// loseDropped deletes the members that refer to dropped rankings, and would otherwise stay in
// memory. Such a class must accumulate effort again before it gets another ranking.
func (ca *cache) loseDropped() {
	maps.DeleteFunc(ca.byClass, func(class int32, m *member) bool {
		if m.dropped {
			delete(ca.effort, class)
		}
		return m.dropped
	})
}

func (ca *cache) mostBytes() int { return max(leastBytes, bytesPerNode*len(ca.c.Nodes)) }

// dropTopologies drops the topologies not used by any ranking or base, except for the given ones.
func (ca *cache) dropTopologies(except []topologyAxis) {
	const few = 8 // number of topologies not worth dropping
	if len(ca.ix.topologies) <= few {
		return
	}
	used := map[*topology]bool{}
	for i := range except {
		used[except[i].topology] = true
	}
	for _, r := range ca.rankings {
		for _, t := range r.tallies {
			used[t.topology] = true
			for i := range t.parts {
				used[t.parts[i].topology] = true
			}
		}
	}

	for _, b := range ca.bases {
		for i := range b.axes {
			used[b.axes[i].topology] = true
		}
		for _, s := range [...]*sums{b.votes, b.repelling} {
			for i := range s.sumsParts() {
				used[s.parts[i].topology] = true
			}
		}
	}
	maps.DeleteFunc(ca.ix.topologies, func(_ topologyKey, t *topology) bool { return !used[t] })
}
