// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"encoding/binary"
	"hash/maphash"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// plannedFromBase returns the plan of a simple class together with its base, or nil if no base can
// be used for the class.
func (ca *cache) plannedFromBase(p *cluster.Pod) *recentPlan {
	class := p.Class
	if !class.Simple {
		return nil
	}

	slot := uint32(class.ID) % recent
	if class.Bulk > bulky {
		slot %= recentBulky
	}

	known, now := &ca.plans[slot], ca.ix.versionsFor(class)
	fits := known.class == class && known.plan != nil
	if fits && known.terms == ca.ix.terms.version {
		now.terms = known.versions.terms
	} else {
		now.terms = ca.ix.terms.versionFor(class.Labels)
	}

	if !fits || known.versions != now {
		*known = recentPlan{}
		sk := ca.planner.skeletonFor(p)
		if sk == nil {
			return nil
		}
		pl, ok := ca.planner.planFrom(sk, p)
		if !ok {
			return nil
		}
		*known = recentPlan{class: class, full: pl, plan: pl, versions: now}
	}

	const few = 32
	known.terms, known.used, known.soon = ca.ix.terms.version, ca.meter.Clock, ca.meter.Clock-known.used <= few
	if b := known.base; b != nil && !b.dropped && b.costsMore() {
		b.effort.work = 0
		ca.dropBase(b.name)
	}

	if known.nodes != ca.ix.nodesVersion || known.base != nil && known.base.dropped || known.effort != nil && ca.worthSums(known.effort) {
		known.nodes = ca.ix.nodesVersion
		ca.findBase(known)
	}

	if known.base == nil {
		return nil
	}
	return known
}

// findBase finds or creates the base for a plan. The classes of one base share the skeleton and the
// relevant topologies.
func (ca *cache) findBase(known *recentPlan) {
	known.base, known.plan, known.effort = nil, known.full, nil
	key, list, ok := ca.axesOf(known)
	if !ok {
		return
	}

	text := ""
	if pl := known.full; pl.foreignApart {
		text = string(pl.others.describeTerms(pl.example.Class.Affinities))
		known.effort = ca.effortOf(text)
		if ca.worthSums(known.effort) {
			known.plan = pl.withForeignSummed()
			if key, list, ok = ca.axesOf(known); !ok {
				return
			}
		} else {
			text = ""
		}
	}

	fits := ca.limitAxes(list)
	for i := range list {
		key = binary.NativeEndian.AppendUint32(key, uint32(list[i].id)<<1|asBit(list[i].byCount))
	}

	key = append(binary.NativeEndian.AppendUint32(key, uint32(len(list))), text...)
	ca.key = key
	if !fits {
		return
	}

	b := ca.bases[string(key)]
	if b == nil {
		ca.dropBases()
		ca.dropTopologies(list)
		b = newBase(ca.ix, known.plan, slices.Clone(list))
		b.name = string(key)
		ca.bases[b.name] = b
	}

	known.base = b
	if known.plan.foreignSummed {
		b.effort, known.effort = known.effort, nil
	}
}

var effectSeed = maphash.MakeSeed()

// effortOf returns the effort spent on foreign terms; text is their encoding by
// termEffects.describeTerms.
func (ca *cache) effortOf(text string) *sharedEffort {
	key := maphash.String(effectSeed, text) // the text is long if many terms matter
	known := ca.sharedEfforts[key]
	if known == nil {
		known = &sharedEffort{}
		ca.sharedEfforts[key] = known
	}
	known.used = ca.meter.Clock
	return known
}

// worthSums reports whether the decisions with these terms have cost as much as summing the terms
// would.
func (ca *cache) worthSums(said *sharedEffort) bool {
	return said.work > ca.limits.SumsCost*len(ca.c.Nodes)
}

// axesOf lists the topologies relevant to a plan, with a key for all other data shared by the
// classes of one base. ok is false if no base can be used for the plan.
func (ca *cache) axesOf(known *recentPlan) (key []byte, list []topologyAxis, ok bool) {
	pl := known.plan
	known.axisOf = known.axisOf[:0]
	key, list = binary.NativeEndian.AppendUint32(ca.key[:0], pl.skeleton), ca.axes[:0]
	for i := range pl.tallies {
		t := &pl.tallies[i]
		perNode := t.purpose == spreadSoft && t.constraint.PerNode()
		topology := ca.ix.topologyFor(t.key, perNode)
		domains := topology.domainCount()
		byCount := perNode || domains > ca.limits.FewDomains
		if t.purpose == spreadSoft && !perNode {
			if byCount = domains > ca.limits.SoftDomains; byCount {
				return nil, nil, false // a base cannot count the domains of the feasible nodes
			}
		}
		at := slices.IndexFunc(list, func(a topologyAxis) bool { return a.topology == topology })
		if at < 0 {
			at = len(list)
			list = append(list, topologyAxis{topology: topology, byCount: byCount})
		} else if t.purpose == spreadSoft {
			list[at].byCount = byCount
		}
		list[at].soft = list[at].soft || t.purpose == spreadSoft
		known.axisOf = append(known.axisOf, at)
		if pl.everyKey && t.purpose == spreadSoft {
			key = binary.NativeEndian.AppendUint32(key, uint32(at)|1<<31)
		}
	}
	ca.key, ca.axes = key, list
	return key, list, true
}

// limitAxes makes some axes group nodes by count instead of by domain, to avoid too many
// combinations of domains. It reports whether this suffices.
func (ca *cache) limitAxes(list []topologyAxis) bool {
	for {
		groups, most := 1, (*topologyAxis)(nil)
		for i := range list {
			a := &list[i]
			if a.byCount {
				continue
			}
			groups = min(groups*max(1, a.domainCount()), 1<<30)
			if !a.soft && (most == nil || a.domainCount() > most.domainCount()) {
				most = a
			}
		}

		if groups <= ca.limits.Groups || most == nil {
			return groups <= ca.limits.Groups
		}
		most.byCount = true
	}
}
