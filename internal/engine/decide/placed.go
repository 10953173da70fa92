package decide

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// placed records on which nodes the pods of each look are: of classes that differ in requests only,
// there may be thousands. Looks are indexed by their labels, so that only those are looked at that
// a selector may match, and by their terms, to count what these say about a pending pod.
//
// Maps are read in any order here. Whoever sums up what they hold gets the same result in any
// order, and whoever lists nodes sorts them: decisions must not depend on the order of a map.
type placed struct {
	looks   map[[2]uint64]*lookPods // by PodClass.Look
	byLabel map[uint64]lookSet      // by a hash of the label
	byTerms map[[2]uint64]lookSet   // by PodClass.Affinities
	most    [3]int                  // of these; see cluster.Shrunk

	found []*lookPods // by the last search
	round uint64      // how many searches there were
}

// lookSet is a set of looks. Most have one, which needs no map.
type lookSet struct {
	one  *lookPods
	many map[*lookPods]bool // instead of one, where there are or were several
}

// all yields the looks of the set.
func (s lookSet) all(yield func(*lookPods) bool) {
	if s.one != nil {
		yield(s.one)
		return
	}
	for pods := range s.many {
		if !yield(pods) {
			return
		}
	}
}

// lookPods are the pods of a look. class is one of its classes.
type lookPods struct {
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

type nodeCount struct {
	node int32
	podCount
}

// An entry of a map takes as much memory as so many slots.
const fewNodes, slotsOfEntry = 16, 4

// all yields the nodes that have pods of the class.
func (c *nodeCounts) all(yield func(node int32, n podCount) bool) {
	for i := range c.few {
		if !yield(c.few[i].node, c.few[i].podCount) {
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
			return c.few[i].podCount
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
	switch {
	case known:
		if c.few[i].add(by); c.few[i].podCount == (podCount{}) {
			c.few = slices.Delete(c.few, i, i+1)
		}
	case len(c.few) < fewNodes:
		c.few = slices.Insert(c.few, i, nodeCount{node, by})
	default:
		c.manyCounts = &manyCounts{many: map[int32]podCount{node: by}}
		for _, n := range c.few {
			c.many[n.node] = n.podCount
		}

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

func newPlaced() placed {
	return placed{looks: map[[2]uint64]*lookPods{}, byLabel: map[uint64]lookSet{}, byTerms: map[[2]uint64]lookSet{}}
}

// countPod counts a pod that came to a node or left it.
func (p *placed) countPod(class *cluster.PodClass, node int32, terminating bool, by int32) {
	pods := p.looks[class.Look]
	if pods == nil {
		pods = &lookPods{class: class}
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
// same keys: both must read nothing but the class, which does not change.
func (p *placed) listLook(pods *lookPods) {
	p.looks[pods.class.Look] = pods
	for _, label := range pods.class.Labels.List() {
		insert(p.byLabel, hashOf(label.Key, label.Value), pods)
	}
	if pods.class.HasAffinity() {
		insert(p.byTerms, pods.class.Affinities, pods)
	}
	p.shrink()
}

func (p *placed) unlistLook(pods *lookPods) {
	delete(p.looks, pods.class.Look)
	for _, label := range pods.class.Labels.List() {
		remove(p.byLabel, hashOf(label.Key, label.Value), pods)
	}
	if pods.class.HasAffinity() {
		remove(p.byTerms, pods.class.Affinities, pods)
	}
	p.shrink()
}

func (p *placed) shrink() {
	p.looks, p.byLabel = cluster.Shrunk(p.looks, &p.most[0]), cluster.Shrunk(p.byLabel, &p.most[1])
	p.byTerms = cluster.Shrunk(p.byTerms, &p.most[2])
}

func insert[K comparable](index map[K]lookSet, key K, pods *lookPods) {
	switch set := index[key]; {
	case set.many != nil:
		set.many[pods] = true
	case set.one == nil:
		index[key] = lookSet{one: pods}
	default:
		index[key] = lookSet{many: map[*lookPods]bool{set.one: true, pods: true}}
	}
}

func remove[K comparable](index map[K]lookSet, key K, pods *lookPods) {
	set := index[key]
	if delete(set.many, pods); len(set.many) == 0 {
		delete(index, key)
	}
}

// beginSearch begins a search.
func (p *placed) beginSearch() {
	p.round++
	p.found = p.found[:0]
}

// findLooks adds those looks of a set to the list that were not found in this round before.
func (p *placed) findLooks(set lookSet) {
	for pods := range set.all {
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
