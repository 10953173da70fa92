// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"encoding/binary"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// base groups the nodes for all classes that have the same requirements on single nodes; the
// classes may differ in requested room and in pod selectors. The workloads of a cluster often
// differ only in these two, so a new class can be decided without scanning all nodes; see survey.
//
// Nodes are divided into groups. The nodes of a group are alike in all properties that matter to
// the classes, and are in the same domain of every topology with few domains. The tree of the group
// holds its nodes by room.
//
// Invariant: at holds the group of each node eligible for the classes of the base. Such a node is
// in odd if it lacks CPU or memory. Otherwise it is in the tree of its group, unless it is full.
type base struct {
	ix   *index
	name string // key in cache.bases
	plan *plan  // plan of one of the classes; its verdicts on single nodes are valid for all classes
	axes []topologyAxis
	seen int    // position in the log
	used uint64 // decider's clock at the last use

	groups    []*baseGroup
	byKey     map[string]int32
	at        []int32 // by node: its group; none: the node is missing or rejects all pods of the classes
	spots     []spot  // by node: its position in the tree of its group, if any
	odd       []int32 // nodes with a group but without a tree, because they lack CPU or memory; sorted
	sets      []*inclusionSet
	inclusion *plugins.SpreadInclusion

	statics  []*static
	byStatic map[baseStatic]int32

	// The sums of foreign terms that match the classes; nil if there are no such terms, or if the
	// base does not sum them. Nodes with a foreign term that repels the classes are in separate
	// groups.
	votes, repelling *sums
	perVote          float64 // width of one vote along the axis of votes; see box.widthAlong
	// moved counts the nodes moved because of changed sums, and served counts the decisions made
	// from the base.
	moved, served int
	effort        *sharedEffort // effort for the summed foreign terms; nil: no terms are summed

	looked  int     // number of tree cells and nodes examined
	changed []int32 // scratch space
	key     []byte
}

// baseGroup is a group of nodes with the same key.
type baseGroup struct {
	static   int32
	values   []int32 // by axis; see valueOf
	repelled bool
	tree     *tree
}

// baseStatic identifies the static of accepted nodes.
type baseStatic struct {
	taint, affinity, image int64
	scored, hostname       bool
}

// rejected is the static of nodes that reject all pods of the classes.
const rejected = none

// newBase makes a base for all classes of the plan's skeleton, with its nodes grouped by the given
// topologies.
func newBase(ix *index, pl *plan, axes []topologyAxis) *base {
	b := &base{ix: ix, plan: pl, axes: axes}
	if pl.foreignSummed {
		b.votes, b.repelling = pl.others.sumTerms(ix, pl.example.Class.Affinities)
	}
	b.rebuild()
	return b
}

// bytes estimates the memory of the base.
func (b *base) bytes() int {
	const perNode, perCell = 16, 300
	n := perNode*len(b.at) + 4*len(b.at)*len(b.sets) + len(b.name) + bulkBytes*b.plan.example.Class.Bulk
	for _, g := range b.groups {
		n += perCell * len(g.tree.cells)
	}
	for _, s := range [...]*sums{b.votes, b.repelling} {
		if s != nil {
			n += s.bytes()
		}
	}
	return n
}

func (b *base) roomOf(node int32) *cluster.Room { return &b.ix.c.Rooms[node] }

func (b *base) balanceOf(node int32) int8 { return b.ix.balance[node] &^ hasGuests }

func (b *base) pointAt(node int32) point {
	return pointOf(b.roomOf(node), b.balanceOf(node), b.votesOf(node))
}

// votesOf returns the votes of foreign terms for a node, if the base sums them.
func (b *base) votesOf(node int32) int64 {
	if b.votes == nil {
		return 0
	}
	return b.votes.byNode[node]
}

// isRepelled reports whether the summed foreign terms repel the classes from a node.
func (b *base) isRepelled(node int32) bool { return b.repelling != nil && b.repelling.byNode[node] > 0 }

// scoreRoom returns a node's score for room, or noRoom if the node lacks room.
func (b *base) scoreRoom(node int32, q *room) int16 {
	return q.scoreNode(b.roomOf(node), b.balanceOf(node))
}

// rebuild rereads the whole cluster.
func (b *base) rebuild() {
	c := b.ix.c
	b.seen = c.Log.Len()
	b.groups, b.byKey, b.odd, b.sets, b.inclusion = nil, map[string]int32{}, nil, nil, nil
	b.statics, b.byStatic = nil, map[baseStatic]int32{}
	b.at, b.spots = make([]int32, len(c.Nodes)), make([]spot, len(c.Nodes))
	b.countSums()
	b.ix.meter.Work += effort.CostOfBulk(c, b.plan.example.Class)
	fresh := map[int32][]int32{}

	for i := range c.Nodes {
		node := int32(i)
		if b.at[i] = b.groupOf(node); b.at[i] == none {
			continue
		}
		switch {
		case !hasBothResources(b.roomOf(node)):
			b.odd = append(b.odd, node)
		case isFull(b.roomOf(node)):
			b.spots[node].cell = none
		default:
			fresh[b.at[i]] = append(fresh[b.at[i]], node)
		}
	}

	for i, g := range b.groups {
		g.tree.fillLeaf(b, g.tree.root, fresh[int32(i)])
	}
}

// catchUp applies all new entries of the log.
func (b *base) catchUp() {
	log := &b.ix.c.Log
	changes, known := log.Since(b.seen)
	if !known || len(changes) > len(b.at)+64 || len(b.byStatic) > 2*len(b.at)+1024 {
		b.rebuild()
		return
	}
	b.seen = log.Len()
	if len(changes) == 0 {
		return
	}
	b.changed = b.changed[:0]
	for i := range changes {
		switch changes[i].Kind {
		case cluster.NodeChanged, cluster.PodAdded, cluster.PodRemoved:
			b.changed = append(b.changed, changes[i].Node)
		}
	}
	b.followSums(changes)
	if len(b.changed) > 1 {
		slices.Sort(b.changed)
		b.changed = slices.Compact(b.changed)
	}
	// Take all nodes out of their trees before inserting any, since a tree reads the current room
	// of its nodes.
	for _, node := range b.changed {
		b.removeFromTree(node)
	}
	for i := range changes {
		if changes[i].Kind == cluster.NodeChanged {
			b.findGroupAnew(changes[i].Node)
		}
	}
	if b.repelling != nil {
		for _, node := range b.changed {
			if group := b.at[node]; group != none {
				b.at[node] = b.groupWith(b.groups[group].static, node)
			}
		}
	}
	for _, node := range b.changed {
		b.insertIntoTree(node)
	}
}

// countSums recomputes the sums of foreign terms.
func (b *base) countSums() {
	if b.repelling != nil {
		b.repelling.countAll()
	}
	if b.votes == nil {
		return
	}
	b.votes.countAll()
	b.perVote = 0
	if len(b.votes.byNode) > 0 {
		if most, least := slices.Max(b.votes.byNode), slices.Min(b.votes.byNode); most > least {
			b.perVote = plugins.MaxScore / float64(most-least)
		}
	}
}

// followSums applies the changes to the sums, and appends to b.changed the nodes whose sums may
// have changed.
func (b *base) followSums(changes []cluster.Change) {
	before := len(b.changed)
	for _, s := range [...]*sums{b.votes, b.repelling} {
		if s != nil {
			b.changed = s.followChanges(changes, b.changed)
		}
	}
	b.moved += len(b.changed) - before
	b.looked += len(b.changed) - before
}

// removeFromTree removes a node from its tree or from odd, if it is in one of them. b.at must still
// hold the node's group.
func (b *base) removeFromTree(node int32) {
	if int(node) >= len(b.at) || b.at[node] == none {
		return
	}
	if i, isOdd := slices.BinarySearch(b.odd, node); isOdd {
		b.odd = slices.Delete(b.odd, i, i+1)
	} else if b.spots[node].cell != none {
		b.groups[b.at[node]].tree.removeNode(b, node)
	}
}

// insertIntoTree inserts a node, which must be in no tree, into the tree of its group or into odd,
// unless the node is full.
func (b *base) insertIntoTree(node int32) {
	if b.at[node] == none {
		return
	}
	switch {
	case !hasBothResources(b.roomOf(node)):
		i, _ := slices.BinarySearch(b.odd, node)
		b.odd = slices.Insert(b.odd, i, node)
	case isFull(b.roomOf(node)):
		b.spots[node].cell = none
	default:
		b.groups[b.at[node]].tree.insertNode(b, node)
	}
}

// findGroupAnew recomputes the group of a changed node.
func (b *base) findGroupAnew(node int32) {
	for int(node) >= len(b.at) {
		b.at, b.spots = append(b.at, none), append(b.spots, spot{})
	}
	b.at[node] = b.groupOf(node)
	for _, set := range b.sets {
		set.updateNode(node, b.ix.c.Nodes[node], b.inclusion)
	}
}

// groupOf returns the group of a node, or none.
func (b *base) groupOf(node int32) int32 {
	n := b.ix.c.Nodes[node]
	if n == nil {
		return none
	}
	static := b.findStatic(n)
	b.ix.meter.Looked += 1 + len(b.axes)
	b.ix.meter.Work += effort.CostOfSorting
	if static == rejected {
		return none
	}
	return b.groupWith(static, node)
}

// groupWith returns the group of a node with the given static, creating the group if necessary.
func (b *base) groupWith(static, node int32) int32 {
	b.key = binary.NativeEndian.AppendUint32(b.key[:0], uint32(static)<<1|asBit(b.isRepelled(node)))
	for i := range b.axes {
		b.key = binary.NativeEndian.AppendUint32(b.key, uint32(b.axes[i].valueOf(node)))
	}
	index, known := b.byKey[string(b.key)]
	if known {
		return index
	}
	g := &baseGroup{static: static, values: make([]int32, len(b.axes)), repelled: b.isRepelled(node), tree: newTree()}
	for i := range b.axes {
		g.values[i] = b.axes[i].valueOf(node)
	}
	index = int32(len(b.groups))
	b.groups = append(b.groups, g)
	b.byKey[string(b.key)] = index
	return index
}

// valueOf returns the value of a node in an empty tally of this topology.
func (a *topologyAxis) valueOf(node int32) int32 {
	domain := a.domain[node]
	if a.byCount && domain != none {
		return 0
	}
	return domain
}

// findStatic returns the index of the node's static, or rejected.
func (b *base) findStatic(n *cluster.Node) int32 {
	pl := b.plan
	for _, judges := range [...][]namedJudge{pl.early, pl.late} {
		for _, f := range judges {
			if f.judge(n) != nil {
				return rejected
			}
		}
	}

	s := pl.scoreStatic(n)
	key := baseStatic{s.taint, s.affinity, s.image, s.scored, s.hostname}
	index, known := b.byStatic[key]
	if !known {
		index = int32(len(b.statics))
		kept := s
		b.statics = append(b.statics, &kept)
		b.byStatic[key] = index
	}

	return index
}

// sharedEffort is the effort spent on deciding pods matched by the same foreign terms with many
// topology keys.
type sharedEffort struct {
	work int
	used uint64 // decider's clock at the last use
}

// inclusionFor returns the inclusion set for the constraint of a tally; keys lists the keys of all
// hard constraints.
func (b *base) inclusionFor(pl *plan, t *tallyPlan, topology *topology, keys []*topology) *inclusionSet {
	for _, set := range b.sets {
		if set.topology == topology && set.constraint.NodeAffinityPolicy == t.constraint.NodeAffinityPolicy &&
			set.constraint.NodeTaintsPolicy == t.constraint.NodeTaintsPolicy && slices.Equal(set.keys, keys) {
			return set
		}
	}
	if b.inclusion == nil {
		b.inclusion = pl.inclusion
	}
	set := &inclusionSet{keys: slices.Clone(keys), constraint: *t.constraint, topology: topology}
	for i := range b.at {
		set.updateNode(int32(i), b.ix.c.Nodes[i], b.inclusion)
	}
	b.sets = append(b.sets, set)
	return set
}
