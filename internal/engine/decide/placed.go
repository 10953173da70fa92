// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"iter"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// placed records the nodes of the pods of each look. Only labels named by selectors distinguish
// looks; otherwise each pod of a StatefulSet or an indexed Job would have a different look. Looks
// are indexed by their labels, so that a selector is matched only against candidates, and by their
// terms, to count their effect on a pending pod.
//
// Results are yielded in arbitrary map order, but decisions must not depend on map order. Callers
// must therefore sum up values and sort lists of nodes.
type placed struct {
	named   namedKeys
	looks   cluster.Set[lookPods] // by lookOf
	byLabel lookIndex
	byTerms lookIndex // by PodClass.Affinities

	found []*lookPods // looks found by the last search
	round uint64      // number of searches
}

// lookIndex finds looks by a hash of one of their properties. Different properties with the same
// hash share an entry. Most hashes have a single look.
type lookIndex struct {
	first cluster.Set[lookPods]
	also  map[uint32]map[*lookPods]bool // further looks with the same hash
}

// withHash yields the looks with the given hash.
func (x *lookIndex) withHash(hash uint32) iter.Seq[*lookPods] {
	return func(yield func(*lookPods) bool) {
		if first := x.first.First(hash); first == nil || !yield(first) {
			return
		}
		for pods := range x.also[hash] {
			if !yield(pods) {
				return
			}
		}
	}
}

// insert adds a look, which may be present already.
func (x *lookIndex) insert(hash uint32, pods *lookPods) {
	switch first := x.first.First(hash); {
	case first == nil:
		x.first.Add(hash, pods)
	case first == pods:
	case x.also[hash] == nil:
		if x.also == nil {
			x.also = map[uint32]map[*lookPods]bool{}
		}
		x.also[hash] = map[*lookPods]bool{pods: true}
	default:
		x.also[hash][pods] = true
	}
}

// remove removes a look, which may be absent.
func (x *lookIndex) remove(hash uint32, pods *lookPods) {
	also := x.also[hash]
	if x.first.First(hash) == pods {
		x.first.Remove(hash, func(*lookPods) bool { return true })
		for next := range also {
			x.first.Add(hash, next)
			pods = next
			break
		}
	}
	if delete(also, pods); len(also) == 0 {
		delete(x.also, hash)
	}
}

// lookPods holds the pods of a look. class is one of its classes; its other classes may differ in
// labels with keys that no selector names.
type lookPods struct {
	look  [2]uint64
	class *cluster.PodClass
	nodes nodeCounts
	found uint64 // the last search that found it; see placed.round
}

// nodeCounts counts the pods of a class by node. It uses a sorted list for few nodes, as for most
// classes, a map for more nodes, and one slot per node once the slots take less memory than the
// map.
type nodeCounts struct {
	few         []nodeCount
	*manyCounts // replaces the list if there are more than fewNodes nodes, or a count does not fit into a nodeCount; otherwise nil
}

// manyCounts holds the counts for many nodes.
type manyCounts struct {
	many  map[int32]podCount
	every []podCount // by node; replaces the map
	there int32      // number of nodes with pods, if the slice is used
	top   int32      // highest node added so far, if the map is used
}

// nodeCount stores a node and its podCount with half the number of bits per count.
type nodeCount struct {
	node             int32
	staying, leaving int16
}

func (n *nodeCount) count() podCount { return podCount{int32(n.staying), int32(n.leaving)} }

// countOn converts a count to a nodeCount; fits is false if the count is too large.
func countOn(node int32, n podCount) (short nodeCount, fits bool) {
	short = nodeCount{node, int16(n.staying), int16(n.leaving)}
	return short, short.count() == n
}

// A map entry takes as much memory as slotsOfEntry slots.
const fewNodes, slotsOfEntry = 16, 4

// fewMore is the number of entries by which the list of few nodes grows.
const fewMore = 2

// all yields the nodes with pods of the class.
func (c *nodeCounts) all(yield func(node int32, n podCount) bool) {
	for i := range c.few {
		if !yield(c.few[i].node, c.few[i].count()) {
			return
		}
	}
	if c.manyCounts == nil {
		return
	}
	for node, n := range c.many {
		if !yield(node, n) {
			return
		}
	}
	for node, n := range c.every {
		if n != (podCount{}) && !yield(int32(node), n) {
			return
		}
	}
}

// countOn returns the pods of the class on a node.
func (c *nodeCounts) countOn(node int32) podCount {
	switch {
	case c.manyCounts == nil:
	case c.many != nil:
		return c.many[node]
	default:
		if int(node) < len(c.every) {
			return c.every[node]
		}
		return podCount{}
	}
	for i := range c.few {
		if c.few[i].node == node {
			return c.few[i].count()
		}
	}
	return podCount{}
}

// len returns the number of nodes with pods of the class. Only one of the three representations is
// in use, so the sizes of the others are 0.
func (c *nodeCounts) len() int {
	if c.manyCounts == nil {
		return len(c.few)
	}
	return len(c.many) + int(c.there)
}

// addPods changes the count of a node, and drops the node at zero.
func (c *nodeCounts) addPods(node int32, count podCount) {
	switch {
	case c.manyCounts == nil:
		c.addToFew(node, count)
	case c.every != nil:
		c.addToSlot(node, count)
	default:
		c.addToMany(node, count)
	}
}

// addToFew updates the counts in a short sorted list: most classes have pods on few nodes, and a
// list of sixteen is searched faster than a map, in a fraction of the memory.
func (c *nodeCounts) addToFew(node int32, count podCount) {
	i, known := slices.BinarySearchFunc(c.few, node, func(n nodeCount, node int32) int { return cmp.Compare(n.node, node) })
	if known {
		now := c.few[i].count()
		now.add(count)
		count = now
	}

	short, fits := countOn(node, count)
	switch {
	case known && count == podCount{}:
		c.few = slices.Delete(c.few, i, i+1)
	case fits && known:
		c.few[i] = short
	case fits && len(c.few) < fewNodes:
		if len(c.few) == cap(c.few) { // append would double the capacity
			c.few = append(make([]nodeCount, 0, len(c.few)+fewMore), c.few...)
		}
		c.few = slices.Insert(c.few, i, short)
	default:
		c.manyCounts = &manyCounts{many: map[int32]podCount{}}
		for _, n := range c.few {
			c.many[n.node] = n.count()
		}
		c.many[node] = count

		c.few, c.top = nil, node
		for other := range c.many {
			c.top = max(c.top, other)
		}
	}
}

// addToMany updates the counts in a map, until slots for all nodes up to the highest take less
// memory.
func (c *nodeCounts) addToMany(node int32, count podCount) {
	n := c.many[node]
	if n.add(count); n == (podCount{}) {
		delete(c.many, node)
		return
	}
	c.many[node], c.top = n, max(c.top, node)
	if len(c.many)*slotsOfEntry <= int(c.top) {
		return
	}
	c.every, c.there = make([]podCount, c.top+1), int32(len(c.many))
	for node, n := range c.many {
		c.every[node] = n
	}
	c.many = nil
}

// addToSlot updates the counts in slots by node. It converts them back to a map only if the map
// takes less than half the memory, so a pod count that oscillates around the threshold does not
// cause repeated conversions.
func (c *nodeCounts) addToSlot(node int32, count podCount) {
	if missing := int(node) + 1 - len(c.every); missing > 0 {
		c.every = append(c.every, make([]podCount, missing)...)
	}
	n := &c.every[node]
	empty := *n == podCount{}
	n.add(count)

	switch now := *n == (podCount{}); {
	case empty && !now:
		c.there++
	case now && !empty:
		c.there--
	}

	if int(c.there)*slotsOfEntry*2 > len(c.every) {
		return
	}
	c.many, c.top = make(map[int32]podCount, c.there), int32(len(c.every)-1)
	for node, n := range c.every {
		if n != (podCount{}) {
			c.many[int32(node)] = n
		}
	}

	c.every, c.there = nil, 0
}

// podCount counts the terminating and the remaining pods on a node.
type podCount struct{ staying, leaving int32 }

func (n *podCount) add(count podCount) {
	n.staying, n.leaving = n.staying+count.staying, n.leaving+count.leaving
}

// at returns the pods of a look, or nil.
func (p *placed) at(look [2]uint64) *lookPods {
	return p.looks.Find(cluster.ShortHash(look[0]), func(pods *lookPods) bool { return pods.look == look })
}

// countPod counts a pod added to or removed from a node.
func (p *placed) countPod(class *cluster.PodClass, node int32, terminating bool, by int32) {
	look := p.named.lookOf(class)
	pods := p.at(look)
	if pods == nil {
		pods = &lookPods{look: look, class: class}
		p.listLook(pods)
	}
	if terminating {
		pods.nodes.addPods(node, podCount{leaving: by})
	} else {
		pods.nodes.addPods(node, podCount{staying: by})
	}
	if pods.nodes.len() == 0 {
		p.unlistLook(pods)
	}
}

// listLook adds a look to all indexes. unlistLook must remove exactly the same keys. Both functions
// therefore read only the class, which is immutable, and the set of named keys. A change of that
// set recreates all looks.
func (p *placed) listLook(pods *lookPods) {
	p.looks.Add(cluster.ShortHash(pods.look[0]), pods)
	for key, value := range p.named.labelsOf(pods.class) {
		p.byLabel.insert(shortHashOf(key, value), pods)
	}
	if pods.class.HasAffinity() {
		p.byTerms.insert(cluster.ShortHash(pods.class.Affinities[0]), pods)
	}
}

func (p *placed) unlistLook(pods *lookPods) {
	p.looks.Remove(cluster.ShortHash(pods.look[0]), func(o *lookPods) bool { return o == pods })
	for key, value := range p.named.labelsOf(pods.class) {
		p.byLabel.remove(shortHashOf(key, value), pods)
	}
	if pods.class.HasAffinity() {
		p.byTerms.remove(cluster.ShortHash(pods.class.Affinities[0]), pods)
	}
}

// beginSearch begins a search.
func (p *placed) beginSearch() {
	p.round++
	p.found = p.found[:0]
}

// findLooks adds the looks with a hash to the list, except those already found in this round.
func (p *placed) findLooks(index *lookIndex, hash uint32) {
	for pods := range index.withHash(hash) {
		if pods.found != p.round {
			pods.found = p.round
			p.found = append(p.found, pods)
		}
	}
}

// termSelectors lists the selectors of the terms of a class.
func termSelectors(class *cluster.PodClass) (list []*rules.Selector) {
	for _, terms := range [...][]cluster.Term{class.RequiredAffinity, class.RequiredAntiAffinity} {
		for i := range terms {
			list = append(list, terms[i].Selector)
		}
	}
	for _, terms := range [...][]cluster.WeightedTerm{class.PreferredAffinity, class.PreferredAntiAffinity} {
		for i := range terms {
			list = append(list, terms[i].Selector)
		}
	}
	return list
}
