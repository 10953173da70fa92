// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math/bits"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// tree is a k-d tree of nodes that are not full, ordered by room. Each cell records the number of
// nodes below it and the bounds of their room. The tree serves requests of any size, even a size
// not seen before, without scanning all nodes.
//
// Invariants: every node is in exactly one leaf, given by base.spots; the count of a cell includes
// all nodes below it; its box contains the points of all these nodes. Points are computed from the
// current room and never stored, so all nodes with changed room must be removed before any node is
// inserted; see base.catchUp.
type tree struct {
	root   int32
	cells  []cell
	vacant []int32 // free cells
}

// cell is a leaf if it has no children. A leaf holds few nodes, or any number of identical ones;
// see isAlike.
type cell struct {
	box                 box
	count               int32
	parent, left, right int32
	axis                int8 // axis of split: the nodes below left have lower values than split
	alike               bool // a leaf whose nodes are alike
	split               float64
	nodes               []int32
}

// spot is the position of a node in the tree of its group.
type spot struct{ cell, place int32 }

// newTree returns a tree without nodes: its root is an empty leaf, so that operations need not
// check for a missing root.
func newTree() *tree {
	t := &tree{}
	t.root = t.newLeaf(none)
	return t
}

// newLeaf returns an empty leaf.
func (t *tree) newLeaf(parent int32) int32 {
	fresh := cell{box: emptyBox, parent: parent, left: none, right: none}
	if last := len(t.vacant) - 1; last >= 0 {
		i := t.vacant[last]
		t.vacant = t.vacant[:last]
		fresh.nodes = t.cells[i].nodes[:0]
		t.cells[i] = fresh
		return i
	}
	t.cells = append(t.cells, fresh)
	return int32(len(t.cells) - 1)
}

// isAlike reports whether two nodes of a tree have the same votes and the same room. The number of
// pods may differ, because neither node is full.
func (b *base) isAlike(node, other int32) bool {
	return b.votesOf(node) == b.votesOf(other) && sameRoom(b.roomOf(node), b.roomOf(other))
}

// sameRoom ignores pod slots. This is valid only for nodes that are not full, such as the nodes of
// a tree: each can take one more pod.
func sameRoom(a, b *cluster.Room) bool {
	return a.RequestedCPU == b.RequestedCPU && a.RequestedMemory == b.RequestedMemory && a.NonZeroCPU == b.NonZeroCPU &&
		a.NonZeroMemory == b.NonZeroMemory && a.CPU == b.CPU && a.Memory == b.Memory
}

// addToLeaf adds a node to a leaf.
func (t *tree) addToLeaf(b *base, i, node int32, p *point) {
	c := &t.cells[i]
	c.alike = len(c.nodes) == 0 || c.alike && b.isAlike(node, c.nodes[0])
	b.spots[node] = spot{i, int32(len(c.nodes))}
	c.nodes = append(c.nodes, node)
	c.count++
	c.box.addPoint(p)
}

// insertNode inserts a node into its leaf. The depth is at most twice the binary logarithm of the
// number of nodes, plus a constant. Without this limit, nodes that drift to one side, for example
// while being filled, would degrade the tree to a list.
func (t *tree) insertNode(b *base, node int32) {
	p := b.pointAt(node)
	i, depth := t.root, 0
	for ; t.cells[i].left != none; depth++ {
		c := &t.cells[i]
		c.count++
		c.box.addPoint(&p)
		if p.at[c.axis] < c.split {
			i = c.left
		} else {
			i = c.right
		}
	}

	wasAlike := t.cells[i].alike
	t.addToLeaf(b, i, node, &p)
	if c := &t.cells[i]; len(c.nodes) > b.ix.limits.LeafSize && !c.alike {
		if wasAlike && len(c.nodes) > b.ix.limits.LeafSize+1 {
			t.splitOff(b, i)
		} else {
			t.divideLeaf(b, i)
		}
	}

	if count := uint(t.cells[t.root].count); depth > 2*bits.Len(count)+8 {
		t.rebuild(b)
	}
}

// rebuild rebalances the tree, since nodes drift away from the original splits.
func (t *tree) rebuild(b *base) {
	all := t.all(t.root, nil)
	t.cells, t.vacant = t.cells[:0], nil
	t.root = t.newLeaf(none)
	t.fillLeaf(b, t.root, all)
}

// all appends the nodes below a cell.
func (t *tree) all(i int32, nodes []int32) []int32 {
	if c := &t.cells[i]; c.left != none {
		return t.all(c.right, t.all(c.left, nodes))
	}
	return append(nodes, t.cells[i].nodes...)
}

// splitOff moves the last node of a leaf to a separate leaf. The remaining nodes are alike, and
// there may be many of them.
func (t *tree) splitOff(b *base, i int32) {
	c := &t.cells[i]
	last := len(c.nodes) - 1
	odd, other := b.pointAt(c.nodes[last]), b.pointAt(c.nodes[0])
	axis := 0
	for axis < axes && odd.at[axis] == other.at[axis] {
		axis++
	}

	if axis == axes {
		return
	}
	node, above := c.nodes[last], c.parent
	parent, alone := t.newLeaf(above), t.newLeaf(none)
	t.replaceCell(above, i, parent)
	c, p := &t.cells[i], &t.cells[parent]
	p.box, p.count, p.axis = c.box, c.count, int8(axis)

	c.nodes, c.count, c.alike, c.box = c.nodes[:last], c.count-1, true, emptyBox
	c.box.addPoint(&other)
	c.parent, t.cells[alone].parent = parent, parent
	if p.split, p.left, p.right = other.at[axis], alone, i; odd.at[axis] > other.at[axis] {
		p.split, p.left, p.right = odd.at[axis], i, alone
	}
	t.addToLeaf(b, alone, node, &odd)
}

// replaceCell replaces the child old of the cell above, or the root, by another cell. The caller
// sets the parents.
func (t *tree) replaceCell(above, old, by int32) {
	switch {
	case above == none:
		t.root = by
	case t.cells[above].left == old:
		t.cells[above].left = by
	default:
		t.cells[above].right = by
	}
}

// divideLeaf splits a leaf along its widest axis, unless its width is 0 on all axes.
func (t *tree) divideLeaf(b *base, i int32) {
	c := &t.cells[i]
	widest, width := 0, 0.0
	for axis := range axes {
		if w := c.box.widthAlong(axis, b.perVote); w > width {
			widest, width = axis, w
		}
	}
	if width == 0 {
		return
	}
	split := medianOf(b, c.nodes, widest)
	if split <= c.box.low[widest] { // the median is the lowest value, and no value is below it
		split = nextAbove(b, c.nodes, widest, c.box.low[widest])
	}
	nodes, at := c.nodes, 0
	for k := range nodes {
		if p := b.pointAt(nodes[k]); p.at[widest] < split {
			nodes[at], nodes[k] = nodes[k], nodes[at]
			at++
		}
	}

	if at == 0 || at == len(nodes) { // the box may be larger than its contents
		c.box = emptyBox
		for _, node := range nodes {
			p := b.pointAt(node)
			c.box.addPoint(&p)
		}
		for k, node := range nodes {
			b.spots[node].place = int32(k)
		}
		return
	}
	left, right := t.newLeaf(i), t.newLeaf(i)
	c = &t.cells[i]
	c.axis, c.split, c.left, c.right, c.nodes, c.alike = int8(widest), split, left, right, nil, false
	t.fillLeaf(b, left, nodes[:at])
	t.fillLeaf(b, right, nodes[at:])
}

// medianOf returns an approximate median along an axis.
func medianOf(b *base, nodes []int32, axis int) float64 {
	var some [31]float64
	n := min(len(some), len(nodes))
	for k := range n {
		p := b.pointAt(nodes[k*len(nodes)/n])
		some[k] = p.at[axis]
	}
	slices.Sort(some[:n])
	return some[n/2]
}

// nextAbove returns the lowest value along an axis above low.
func nextAbove(b *base, nodes []int32, axis int, low float64) float64 {
	next := low
	for _, node := range nodes {
		p := b.pointAt(node)
		if v := p.at[axis]; v > low && (next == low || v < next) {
			next = v
		}
	}
	return next
}

// fillLeaf inserts nodes into an empty leaf.
func (t *tree) fillLeaf(b *base, i int32, nodes []int32) {
	for _, node := range nodes {
		p := b.pointAt(node)
		t.addToLeaf(b, i, node, &p)
	}
	if c := &t.cells[i]; len(c.nodes) > b.ix.limits.LeafSize && !c.alike {
		t.divideLeaf(b, i)
	}
}

// removeNode removes a node. It recomputes the exact box of a small leaf, and the boxes of the
// cells above it, up to the first unchanged cell. Boxes that only grow would eventually stop
// pruning searches. The box of a large leaf does not change, because its nodes are identical.
func (t *tree) removeNode(b *base, node int32) {
	at := b.spots[node]
	c := &t.cells[at.cell]
	last := len(c.nodes) - 1
	c.nodes[at.place] = c.nodes[last]
	b.spots[c.nodes[at.place]].place = at.place
	c.nodes = c.nodes[:last]
	c.count--
	if c.count == 0 && c.parent != none {
		t.collapseLeaf(at.cell)
		return
	}

	if last <= b.ix.limits.LeafSize { // the nodes of a larger leaf are alike
		c.box, c.alike = emptyBox, true
		for k, node := range c.nodes {
			p := b.pointAt(node)
			c.box.addPoint(&p)
			c.alike = c.alike && (k == 0 || b.isAlike(node, c.nodes[0]))
		}
	}
	t.shrinkUpwards(c.parent)
}

// shrinkUpwards removes a node from the counts and boxes of a cell and all cells above it.
func (t *tree) shrinkUpwards(i int32) {
	for smaller := true; i != none; i = t.cells[i].parent {
		c := &t.cells[i]
		c.count--
		if smaller {
			box := t.cells[c.left].box
			box.joinBox(&t.cells[c.right].box)
			smaller = box != c.box
			c.box = box
		}
	}
}

// collapseLeaf replaces the parent of an empty leaf by the leaf's sibling.
func (t *tree) collapseLeaf(i int32) {
	parent := t.cells[i].parent
	p := &t.cells[parent]
	sibling := p.left + p.right - i
	t.cells[sibling].parent = p.parent
	t.replaceCell(p.parent, parent, sibling)
	t.vacant = append(t.vacant, i, parent)
	t.shrinkUpwards(t.cells[sibling].parent)
}

// countFitting counts the nodes with room for a pod.
func (t *tree) countFitting(b *base, i int32, q *room) (n int32) {
	c := &t.cells[i]
	b.looked++
	switch all, any := c.box.fits(q); {
	case !any:
		return 0
	case all:
		return c.count
	case c.left != none:
		return t.countFitting(b, c.left, q) + t.countFitting(b, c.right, q)
	}

	b.looked += len(c.nodes)
	for _, node := range c.nodes {
		if q.fits(b.roomOf(node)) {
			n++
		}
	}
	return n
}

// nth returns the nth node below a cell.
func (t *tree) nth(i, n int32) int32 {
	for t.cells[i].left != none {
		if left := t.cells[i].left; n < t.cells[left].count {
			i = left
		} else {
			n -= t.cells[left].count
			i = t.cells[i].right
		}
	}
	return t.cells[i].nodes[n]
}
