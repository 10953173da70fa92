package decide

import (
	"cmp"
	"iter"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// placed records on which nodes the pods of each look are. Labels that no selector names make no
// look: each pod of a StatefulSet, or of an indexed Job, has one of its own. Looks are indexed by
// their labels, so that only those are looked at that a selector may match, and by their terms, to
// count what these say about a pending pod.
//
// Maps are read in any order here. Whoever sums up what they hold gets the same result in any
// order, and whoever lists nodes sorts them: decisions must not depend on the order of a map.
type placed struct {
	named   namedKeys
	looks   cluster.Set[lookPods] // by lookOf
	byLabel lookIndex
	byTerms lookIndex // by PodClass.Affinities

	found []*lookPods // by the last search
	round uint64      // how many searches there were
}

// lookIndex finds looks by a hash of something that they have: looks of which only the hash is
// equal are found together. Most hashes have one look.
type lookIndex struct {
	first cluster.Set[lookPods]
	also  map[uint32]map[*lookPods]bool // beyond the first
}

// with yields the looks with that hash.
func (x *lookIndex) with(hash uint32) iter.Seq[*lookPods] {
	return func(yield func(*lookPods) bool) {
		first := x.firstWith(hash)
		if first == nil || !yield(first) {
			return
		}
		for pods := range x.also[hash] {
			if !yield(pods) {
				return
			}
		}
	}
}

func (x *lookIndex) firstWith(hash uint32) *lookPods {
	return x.first.Find(hash, func(*lookPods) bool { return true })
}

// insert adds a look, which may be there.
func (x *lookIndex) insert(hash uint32, pods *lookPods) {
	switch first := x.firstWith(hash); {
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

// remove takes out a look, which may be gone.
func (x *lookIndex) remove(hash uint32, pods *lookPods) {
	also := x.also[hash]
	if x.firstWith(hash) == pods {
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

// lookPods are the pods of a look. class is one of its classes: the others may have other labels
// than it, with keys that are not named.
type lookPods struct {
	look  [2]uint64
	class *cluster.PodClass
	nodes nodeCounts
	found uint64 // the last search that found it; see placed.round
}

// nodeCounts are the pods of a class by node: a sorted list while the nodes are few, as for most
// classes, then a map, and a slot for every node once that takes less memory than a map.
type nodeCounts struct {
	few         []nodeCount
	*manyCounts // instead of few, once there were more than fewNodes; else nil
}

// manyCounts are those of many nodes.
type manyCounts struct {
	many  map[int32]podCount
	every []podCount // by node, instead of many
	there int32      // where every is used: the nodes that have pods
	top   int32      // where many is used: the highest node
}

// nodeCount is a podCount in half of the memory.
type nodeCount struct {
	node             int32
	staying, leaving int16
}

func (n *nodeCount) count() podCount { return podCount{int32(n.staying), int32(n.leaving)} }

// countOn is a count that fits into a nodeCount; else fits is false.
func countOn(node int32, n podCount) (short nodeCount, fits bool) {
	short = nodeCount{node, int16(n.staying), int16(n.leaving)}
	return short, short.count() == n
}

// An entry of a map takes as much memory as so many slots.
const fewNodes, slotsOfEntry = 16, 4

// fewMore is by how many entries the list of few nodes grows.
const fewMore = 2

// all yields the nodes that have pods of the class.
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

// on returns the pods of the class on a node.
func (c *nodeCounts) on(node int32) podCount {
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

// len returns how many nodes have such pods. Only one of the three forms is in use, so the sum is
// that of one.
func (c *nodeCounts) len() int {
	if c.manyCounts == nil {
		return len(c.few)
	}
	return len(c.many) + int(c.there)
}

// addPods changes the count of a node, and drops the node when nothing is left.
func (c *nodeCounts) addPods(node int32, by podCount) {
	switch {
	case c.manyCounts == nil:
		c.addToFew(node, by)
	case c.every != nil:
		c.addToSlot(node, by)
	default:
		c.addToMany(node, by)
	}
}

// addToFew keeps the counts in a short sorted list: most classes have pods on few nodes, and a list
// of sixteen is searched faster than a map, in a fraction of the memory.
func (c *nodeCounts) addToFew(node int32, by podCount) {
	i, known := slices.BinarySearchFunc(c.few, node, func(n nodeCount, node int32) int { return cmp.Compare(n.node, node) })
	if known {
		now := c.few[i].count()
		now.add(by)
		by = now
	}

	short, fits := countOn(node, by)
	switch {
	case known && by == podCount{}:
		c.few = slices.Delete(c.few, i, i+1)
	case fits && known:
		c.few[i] = short
	case fits && len(c.few) < fewNodes:
		if len(c.few) == cap(c.few) { // append would double it
			c.few = append(make([]nodeCount, 0, len(c.few)+fewMore), c.few...)
		}
		c.few = slices.Insert(c.few, i, short)
	default:
		c.manyCounts = &manyCounts{many: map[int32]podCount{}}
		for _, n := range c.few {
			c.many[n.node] = n.count()
		}
		c.many[node] = by

		c.few, c.top = nil, node
		for other := range c.many {
			c.top = max(c.top, other)
		}
	}
}

// addToMany keeps the counts in a map, until slots for all nodes up to the highest would take less
// memory.
func (c *nodeCounts) addToMany(node int32, by podCount) {
	n := c.many[node]
	if n.add(by); n == (podCount{}) {
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

// addToSlot keeps the counts by node. It goes back to a map only when that would take less than
// half the memory, so that a class whose pods come and go at the threshold is not converted each
// time.
func (c *nodeCounts) addToSlot(node int32, by podCount) {
	if missing := int(node) + 1 - len(c.every); missing > 0 {
		c.every = append(c.every, make([]podCount, missing)...)
	}
	n := &c.every[node]
	empty := *n == podCount{}
	n.add(by)

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

// podCount counts pods on a node: those that are terminating, and the others.
type podCount struct{ staying, leaving int32 }

func (n *podCount) add(by podCount) {
	n.staying, n.leaving = n.staying+by.staying, n.leaving+by.leaving
}

// at returns the pods of a look, or nil.
func (p *placed) at(look [2]uint64) *lookPods {
	return p.looks.Find(cluster.ShortHash(look[0]), func(pods *lookPods) bool { return pods.look == look })
}

// countPod counts a pod that came to a node or left it.
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

// listLook lists pods under everything by which they are searched. unlistLook takes out exactly the
// same keys: both must read nothing but the class, which does not change, and which keys are named,
// with which all looks change.
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

// findLooks adds those looks with a hash to the list that were not found in this round before.
func (p *placed) findLooks(index *lookIndex, hash uint32) {
	for pods := range index.with(hash) {
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
