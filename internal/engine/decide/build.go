// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
)

// newRanking scans the whole cluster for a plan. Every later placement requires an update of the
// ranking, so a class gets a ranking only if it is expected to pay off; see cache.go.
func newRanking(ix *index, space *rankScratch, p *plan) *ranking {
	r := &ranking{sheet: sheet{ix: ix, scratch: &space.sheetScratch, plan: p}, space: space}
	r.rebuild()
	return r
}

// rebuild rescans the whole cluster.
func (r *ranking) rebuild() {
	c := r.ix.c
	r.seen = c.Log.Len()
	r.rebuilds++
	r.at, r.bucket = nil, make([]int16, len(c.Nodes))
	if r.fine = nil; r.plan.exact {
		r.fine = make([]int64, len(c.Nodes))
	}

	r.statics, r.inStatics = nil, staticTable{byKey: map[staticKey]int32{}}
	r.groups, r.inGroups = nil, groupTable{byKey: map[groupKey]int32{}, byLong: map[string]int32{}, recent: &r.space.recent}
	r.space.recent = recentGroups{}
	r.reasons = reasonTable{byText: map[string]int16{}, text: r.reasons.text}
	r.countTallies()
	for i := range r.bucket {
		r.bucket[i] = absent
	}

	r.flat, r.live, r.settledOnes = nil, none, map[int]int32{}
	if len(r.tallies) == 0 {
		r.flat = newMaxTree(r.bucket)
	} else {
		r.at = make([]position, len(c.Nodes))
	}

	r.ix.meter.Work += effort.CostOfBulk(c, r.plan.example.Class)
	parts, many := r.ix.partsOfNodes()
	statics := slices.Repeat([]int32{none}, many) // by parts
	for i, n := range c.Nodes {
		if n == nil {
			continue
		}
		static := &statics[parts[i]]
		if *static == none || r.plan.perNode {
			*static = r.staticOf(n)
		}
		r.groupNode(n, *static)
	}
}

// unflatten switches to buckets when a second group has unsettled nodes.
func (r *ranking) unflatten() {
	at := make([]position, len(r.bucket))
	for i, bucket := range r.bucket {
		if bucket != absent {
			at[i].group = r.groupAt(int32(i))
		}
	}
	r.flat, r.at = nil, at
	for i, bucket := range r.bucket {
		if bucket >= 0 {
			r.groups[at[i].group].ok--
			r.putNode(int32(i), at[i].group, bucket)
		}
	}
}

// followPod updates the tallies for a pod added to or removed from a node, which may move nodes to
// other groups. The caller then judges the pod's own node by the new counts; see updateBucket.
func (r *ranking) followPod(change *cluster.Change, sign int64) {
	if len(r.tallies) > 0 {
		for _, e := range r.effectsOf(change.Class) {
			if domain, regroup := r.countPod(change.Node, e, sign, change.Terminating); regroup {
				r.tallies[e.tally].topology.eachNode(domain, r.regroupNode)
			}
		}
	}
}

// updateBucket re-evaluates a node after a change of its pods. Usually the node stays in its
// bucket; otherwise it moves to another bucket of its group.
func (r *ranking) updateBucket(node int32) {
	before := r.bucket[node]
	if before <= ^settled {
		return
	}
	switch now := r.roomOf(node); {
	case now == before:
	case r.flat != nil && now >= 0 && before >= 0:
		r.bucket[node] = now
		r.flat.numberChanged(node, before)
	default:
		r.moveNode(node, now)
	}
}

// regroupNode moves a node to its current group and bucket.
func (r *ranking) regroupNode(node int32) { r.regroupNodeAs(node, false) }

// regroupNodeAs is like regroupNode. If another is set, the node's object has changed, and
// regroupNodeAs also rejudges the static part of the node.
func (r *ranking) regroupNodeAs(node int32, another bool) {
	group, static := none, none
	if before := r.bucket[node]; before != absent {
		group = r.groupAt(node)
		static = r.groups[group].key.static
		r.takeNode(node)
		r.bucket[node] = absent
		if r.flat != nil {
			r.flat.numberChanged(node, before)
		}
	}

	if n := r.ix.c.Nodes[node]; n != nil {
		if another || static == none {
			static = r.staticOf(n)
		}
		r.groupNode(n, static)
	}

	if group != none {
		r.releaseGroup(group)
	}
}

// groupNode adds an absent node with the given static to its group and bucket.
func (r *ranking) groupNode(n *cluster.Node, static int32) {
	r.ix.meter.Looked += 1 + len(r.tallies)
	r.ix.meter.Work += effort.CostOfSorting
	for len(r.values) < len(r.tallies) {
		r.values = append(r.values, 0)
	}

	clear(r.values)
	bucket := int16(0)
	if s := r.statics[static]; s.early != nil {
		bucket = s.bucket
	} else {
		bucket = r.roomOf(n.Index)
		for k, t := range r.tallies {
			r.values[k] = t.value(t.topology.domain[n.Index])
		}
	}

	group := r.groupOf(static, r.values)
	if r.flat != nil {
		switch {
		case bucket <= ^settled:
			r.settledOnes[reasonIn(bucket)] = group
		case r.live == none:
			r.live = group
		case r.live != group:
			r.unflatten()
		}
	}

	r.putNode(n.Index, group, bucket)
}
