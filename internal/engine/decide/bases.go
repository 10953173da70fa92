// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// tryBase decides the pod by a survey if possible.
func (d *Decider) tryBase(p *cluster.Pod) (decision Decision, done bool) {
	if p.Nominated != "" || d.cache.hasRanking(p.Class) {
		return Decision{}, false
	}

	if p.Class.Target() != "" {
		return d.tryTarget(p)
	}
	known := d.cache.plannedFromBase(p)
	if known == nil {
		return Decision{}, false
	}

	s := &d.survey
	s.beginDecision(known.base, known.plan, known.axisOf, p, d.tie)
	defer s.endDecision()
	if wanted := d.tie.preferred; wanted != none && known.plan.scoresNothing() {
		if s.countPods(wanted) && s.takesPod(wanted) {
			return Decision{Node: d.c.Nodes[wanted], Feasible: 1}, true
		}
		s.forgetCounts()
	}

	if !s.countPods(none) {
		return Decision{}, false
	}
	s.setApart()
	choice := s.chooseNode()
	d.cache.recordCost(known, s)
	return d.decisionOf(choice), true
}

// plannedFromBase returns the plan of a simple class together with its base, or nil if no base can
// be used for the class.
func (ca *cache) plannedFromBase(p *cluster.Pod) *recentPlan {
	if !p.Class.Simple {
		return nil
	}
	known := ca.plans.slotOf(p.Class)
	if !ca.renewPlan(known, p) {
		return nil
	}

	const few = 32
	known.used, known.soon = ca.meter.Clock, ca.meter.Clock-known.used <= few
	// Drop a base if its sums have cost more than they saved: adding or removing a pod with foreign
	// terms moves all nodes of its domains.
	if b := known.base; b != nil && b.effort != nil && b.moved > 8*len(b.at)+b.served*ca.limits.BaseGroups {
		b.effort.work = 0
		ca.dropBase(b.name)
	}
	if known.nodes != ca.ix.nodesVersion || known.effort != nil && ca.worthSums(known.effort) {
		known.nodes = ca.ix.nodesVersion
		ca.findBase(known)
	}

	if known.base == nil {
		return nil
	}
	return known
}

// renewPlan makes the plan of a class again if a version has changed, or if the slot holds another
// class. It returns false if there is no plan for the class.
func (ca *cache) renewPlan(known *recentPlan, p *cluster.Pod) bool {
	class, now := p.Class, ca.ix.versionsFor(p.Class)
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
			return false
		}
		pl, ok := ca.planner.planFrom(sk, p)
		if !ok {
			return false
		}
		*known = recentPlan{class: class, full: pl, plan: pl, versions: now}
	}
	known.terms = ca.ix.terms.version
	return true
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

// maxBases bounds the number of bases, regardless of their memory.
const maxBases = 64

// dropBases drops the least recently used bases until there is room for another one. All bases
// together may take as much memory as all rankings together.
func (ca *cache) dropBases() {
	keys, total := make([]string, 0, len(ca.bases)), 0
	for key, b := range ca.bases {
		keys, total = append(keys, key), total+b.bytes()
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(ca.bases[a].used, ca.bases[b].used) })
	for ; len(keys) >= maxBases || total > ca.mostBytes() && len(keys) > 0; keys = keys[1:] {
		total -= ca.bases[keys[0]].bytes()
		ca.dropBase(keys[0])
	}
}

// dropBase is the only function that removes a base.
func (ca *cache) dropBase(key string) {
	ca.plans.loseBase(ca.bases[key])
	delete(ca.bases, key)
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
		byCount := perNode || ca.ix.groupsByCount(domains)
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
