// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// find returns the index of the group with this key, or the key for adding the group.
func (t *groupTable) find(static int32, values []int64) (index int32, key groupKey, long string, known bool) {
	key = groupKey{static: static}
	if len(values) > inKey {
		long = longKey(static, values)
		index, known = t.byLong[long]
		return index, key, long, known
	}

	copy(key.values[:], values)
	slot := t.recent.slotFor(static, values)
	if slot.table == t && slot.key == key {
		return slot.index, key, "", true
	}
	if index, known = t.byKey[key]; known {
		slot.table, slot.key, slot.index = t, key, index
	}
	return index, key, "", known
}

// slotFor returns the cache slot for a group with this key.
func (s *recentGroups) slotFor(static int32, values []int64) *recentGroup {
	at := uint64(static)
	for _, v := range values {
		at = 31*at + uint64(v)
	}
	return &s[at%uint64(len(s))]
}

// add records the index of a group.
func (t *groupTable) add(g *group, index int32) {
	if g.long != "" {
		t.byLong[g.long] = index
	} else {
		t.byKey[g.key] = index
	}
}

// remove frees the index of a group, and reports whether the group was in the table.
func (t *groupTable) remove(g *group, index int32) bool {
	at, ok := t.byKey[g.key]
	if g.long != "" {
		at, ok = t.byLong[g.long]
	}
	if !ok || at != index {
		return false
	}

	if g.long != "" {
		delete(t.byLong, g.long)
	} else {
		delete(t.byKey, g.key)
	}
	if slot := t.recent.slotFor(g.key.static, g.values); slot.table == t && slot.index == index {
		slot.table = nil
	}
	t.vacant = append(t.vacant, index)
	return true
}

// groupOf returns the group of nodes with the given static and values, creating the group if
// necessary.
func (r *ranking) groupOf(static int32, values []int64) int32 {
	t := &r.inGroups
	index, key, long, known := t.find(static, values)
	if known {
		return index
	}

	g := &group{key: key, long: long, values: slices.Clone(values)}
	if last := len(t.vacant) - 1; last >= 0 {
		index, t.vacant = t.vacant[last], t.vacant[:last]
		old := r.groups[index]
		g.buckets, g.inUse = old.buckets, old.inUse
		r.groups[index] = g
	} else {
		index = int32(len(r.groups))
		r.groups = append(r.groups, g)
	}
	t.add(g, index)
	return index
}

// longKey returns the key of a group with more tallies than fit into a groupKey.
func longKey(static int32, values []int64) string {
	key := binary.NativeEndian.AppendUint32(make([]byte, 0, 4+8*len(values)), uint32(static))
	for _, v := range values {
		key = binary.NativeEndian.AppendUint64(key, uint64(v))
	}
	return string(key)
}

// releaseGroup frees the index of a group if no nodes remain in the group.
func (r *ranking) releaseGroup(index int32) {
	g := r.groups[index]
	if g.ok > 0 {
		return
	}

	for _, n := range g.rejected {
		if n > 0 {
			return
		}
	}

	if r.inGroups.remove(g, index) && r.flat != nil && r.live == index {
		r.live = none
	}
}

// putNode adds a node to a bucket of a group, or to the group's rejected nodes.
func (r *ranking) putNode(node, index int32, bucket int16) {
	g, before := r.groups[index], r.bucket[node]
	r.bucket[node] = bucket
	if r.flat != nil {
		r.flat.numberChanged(node, before)
	} else {
		r.at[node].group = index
	}

	if bucket < 0 {
		reason := reasonIn(bucket)
		for reason >= len(g.rejected) {
			g.rejected = append(g.rejected, 0)
		}
		g.rejected[reason]++
		return
	}

	g.ok++
	if r.flat != nil {
		return
	}

	if g.buckets == nil {
		g.buckets, g.inUse = make([][]int32, r.plan.maxRoom+1), make([]uint64, r.plan.maxRoom>>6+1)
	}
	r.at[node].place = int32(len(g.buckets[bucket]))
	g.buckets[bucket] = append(g.buckets[bucket], node)
	g.inUse[bucket>>6] |= 1 << (bucket & 63)
}

// takeNode removes a node from its group.
func (r *ranking) takeNode(node int32) {
	bucket := r.bucket[node]
	g := r.groups[r.groupAt(node)]
	if bucket < 0 {
		g.rejected[reasonIn(bucket)]--
		return
	}

	g.ok--
	if r.flat != nil {
		return
	}

	at := r.at[node]
	b := g.buckets[bucket]
	last := b[len(b)-1]
	b[at.place], r.at[last].place = last, at.place
	g.buckets[bucket] = b[:len(b)-1]
	if len(b) == 1 {
		g.inUse[bucket>>6] &^= 1 << (bucket & 63)
	}
}

// highestBucket returns the highest bucket in use, or -1.
func (g *group) highestBucket() int {
	for w := len(g.inUse) - 1; w >= 0; w-- {
		if g.inUse[w] != 0 {
			return w<<6 + 63 - bits.LeadingZeros64(g.inUse[w])
		}
	}
	return -1
}

// pickFrom returns a random node from the highest buckets of the groups, each with the same
// probability.
func pickFrom(groups []*group, t *tie) int32 {
	total := 0
	for _, g := range groups {
		total += len(g.buckets[g.highestBucket()])
	}
	i := t.draw(total)
	for _, g := range groups {
		b := g.buckets[g.highestBucket()]
		if i < len(b) {
			return b[i]
		}
		i -= len(b)
	}
	panic("unreachable: i is below the sum of the lengths")
}

// staticOf returns the index of the node's static, adding the static if it is new.
func (r *ranking) staticOf(n *cluster.Node) int32 {
	s := r.judgeStatic(n)
	key := staticKey{early: -1, late: -1, taint: s.taint, affinity: s.affinity, image: s.image, scored: s.scored, hostname: s.hostname}
	if s.early != nil {
		key = staticKey{early: ^s.bucket, late: -1} // all other properties are ignored
	} else if s.late != nil {
		key.late = s.lateIndex
	}
	if len(r.statics) > 0 && key == r.inStatics.latest { // true for most nodes
		return r.inStatics.index
	}

	index, known := r.inStatics.byKey[key]
	if !known {
		kept := s // copied so that s itself does not escape to the heap for every node
		index = int32(len(r.statics))
		r.statics = append(r.statics, &kept)
		r.inStatics.byKey[key] = index
	}
	r.inStatics.latest, r.inStatics.index = key, index
	return index
}

// judgeStatic evaluates the part of a node's verdict and scores that does not depend on placements.
// A node rejected by an early filter is settled: no change of its pods can make it feasible, so it
// is neither scored nor examined again until the node itself changes.
func (r *ranking) judgeStatic(n *cluster.Node) static {
	pl := r.plan
	for _, f := range pl.early {
		if rejection := f.judge(n); rejection != nil {
			id := r.reasonOf(f.name, rejection)
			return static{early: &reason{f.name, rejection}, bucket: ^(id | settled)}
		}
	}
	s := pl.scoreStatic(n)
	for _, f := range pl.late {
		if rejection := f.judge(n); rejection != nil {
			s.lateIndex = r.reasonOf(f.name, rejection)
			s.late = &reason{f.name, rejection}
			break
		}
	}
	return s
}

// moveNode moves a node to another bucket of its group.
func (r *ranking) moveNode(node int32, bucket int16) {
	group := r.groupAt(node)
	r.takeNode(node)
	r.putNode(node, group, bucket)
}
