// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// canMove reports whether a pod can run elsewhere. A terminating pod leaves its node anyway.
// Whether the pod may be moved is a separate question; see search.refusalOf.
func canMove(p *pod) bool { return !p.Terminating && !staysOnNode(p) }

// movablePods returns the pods of a node that can run elsewhere, the largest first. Large pods are
// the hardest to place, so they are placed first.
func movablePods(n *cluster.Node, w *world) (list []*pod) {
	for _, p := range n.Pods {
		if known := w.placed[p.UID()]; known != nil && canMove(known) {
			list = append(list, known)
		}
	}
	slices.SortFunc(list, bySize)
	return list
}

// hasMovable reports whether a node has any pod that can run elsewhere. It is cheaper than listing
// the pods.
func hasMovable(n *cluster.Node, w *world) bool {
	return slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool {
		known := w.placed[p.UID()]
		return known != nil && canMove(known)
	})
}

// bySize orders pods by size, the largest first. Devices and other extended resources precede CPU,
// and CPU precedes memory: nodes run short in that order.
func bySize(a, b *pod) int {
	return cmp.Or(
		cmp.Compare(sumScalars(b), sumScalars(a)),
		cmp.Compare(b.Class.Requests.MilliCPU, a.Class.Requests.MilliCPU),
		cmp.Compare(b.Class.Requests.Memory, a.Class.Requests.Memory),
		byName(a, b),
	)
}

// sumScalars adds up the pod's requests for extended resources of any kind. The sum is unitless; it
// is only for sorting.
func sumScalars(p *pod) (sum int64) {
	for _, amount := range p.Class.Requests.Scalars {
		sum += amount
	}
	return sum
}

// emptyNode moves all pods off a node, or none.
//
// closing determines how long the node stays closed. With "" the node stays open, and the moves are
// undone unless they lower a gauge without raising an earlier one, up to the gauge of the strategy.
// If closing is set, the caller judges all nodes of its attempt together.
func (s *search) emptyNode(st *strategy, n *cluster.Node, closing Closing) bool {
	w := s.w
	// Refusals are checked before anything is moved: most attempts fail there, and proving the
	// other moves first would be wasted.
	list := movablePods(n, w)
	for _, p := range list {
		if code, why := s.refusalOf(st, p); code != "" {
			s.stayNode(st, n, code, fmt.Sprintf("%s/%s: %s", p.Namespace(), p.Name(), why))
			return false
		}
	}
	if w.whyLeaving(n) != "" {
		s.stayNode(st, n, NodeLeaving, n.Name+" "+w.whyLeaving(n))
		return false
	}
	mark, before := s.w.Mark(), w.gaugeValues()
	for _, p := range list {
		is := st.moveRequirements()
		is.within = true
		why := proof{}
		if why.code, why.message = s.refusalOf(st, p); why.code == "" { // the preceding moves count towards limits
			why = s.makeMove(st, p, is, "empty "+n.Name, closing)
		}
		if why.code != "" {
			s.w.Undo(mark)
			s.stayNode(st, n, why.code, fmt.Sprintf("%s/%s: %s", p.Namespace(), p.Name(), why.message))
			return false
		}
	}
	after := w.gaugeValues()
	if closing == "" && slices.Compare(after[:st.at+1], before[:st.at+1]) >= 0 {
		s.w.Undo(mark)
		return false
	}
	dropUntilUndone(w, s.nodeStays, n.Name)
	return true
}

// consolidateNodes empties nodes, the cheapest first. Emptied nodes keep Berth's taint.
//
// Moves are planned only for whole nodes. A half-empty node costs as much as a full one, and moving
// only some of its pods would disturb them for nothing.
func (st *strategy) consolidateNodes() {
	w := st.w
	g := &emptied{w: w, wanted: st.Consolidate.Nodes, movable: map[int32]int{}}
	st.gauge = g
	st.attempts = func(s *search) bool {
		if s.tried[st] {
			return false
		}
		s.tried[st] = true
		before := g.countEmpty()
		st.emptyCheapest(s, st.Consolidate.Nodes-before)
		return g.countEmpty() > before
	}
}

// emptied is the gauge of nodes still to be emptied.
//
// A node counts as empty if it is closed and has only terminating pods and pods that belong to it.
// An open node without pods does not count: the next pod may land there.
type emptied struct {
	w       *world
	wanted  int
	movable map[int32]int // pods that can run elsewhere, by node
	// empty caches countEmpty, which is read far more often than it changes. countPod updates it.
	// After a change of nodes it must be recomputed: it is valid only if asOf equals nodeChanges.
	empty, asOf int
}

func (g *emptied) gaugeName() string { return "nodes still to empty" }

// countPod implements gauge.
func (g *emptied) countPod(p *pod, n *cluster.Node, by int64) {
	if !canMove(p) {
		return
	}
	closed := g.w.closures.closed[n.Index]
	if closed && g.movable[n.Index] == 0 {
		g.empty--
	}
	g.movable[n.Index] += int(by)
	if closed && g.movable[n.Index] == 0 {
		g.empty++
	}
}

// currentValue implements gauge. Exceeding the wanted number of empty nodes gains nothing.
func (g *emptied) currentValue() int64 { return int64(max(0, g.wanted-g.countEmpty())) }

// countEmpty counts the closed nodes without pods that can run elsewhere.
func (g *emptied) countEmpty() int {
	if g.asOf == g.w.closures.nodeChanges {
		return g.empty
	}
	g.empty, g.asOf = 0, g.w.closures.nodeChanges
	for index := range g.w.closures.closed {
		if g.movable[index] == 0 {
			g.empty++
		}
	}
	return g.empty
}

// emptyCheapest empties the nodes with the lowest cost. It closes the wanted number of nodes before
// the first move, so that no pod lands on a node about to be emptied.
func (st *strategy) emptyCheapest(s *search, wanted int) {
	if wanted <= 0 {
		return
	}
	w := st.w
	var list []*cluster.Node
	cost := map[*cluster.Node]int64{}

	for _, n := range w.c.Nodes {
		if n == nil || isClosed(n) && !hasMovable(n, w) || !st.sees(n) || w.whyLeaving(n) != "" || controlPlane(n) {
			continue
		}
		list = append(list, n)
		for _, p := range movablePods(n, w) {
			// The cost is the number of movable pods, plus costly for each pod that must stay.
			code, _ := s.refusalOf(st, p)
			cost[n] += 1 + costly*boolToInt(code != "")
		}
	}

	slices.SortStableFunc(list, func(a, b *cluster.Node) int {
		return cmp.Or(cmp.Compare(cost[a], cost[b]), cmp.Compare(a.Name, b.Name))
	})
	excluded := map[*cluster.Node]bool{}
	// All nodes must be chosen before the first move, so after a failure all of them are chosen
	// again, without the failed node.
	total := w.clusterShares() // unchanged by restarts
	for range mostRestarts {
		mark := s.w.Mark()
		failed := st.emptyAll(s, list, excluded, cost, &total, wanted)
		if failed == nil {
			return
		}
		s.w.Undo(mark)
		excluded[failed] = true
	}
}

// mostRestarts bounds the restarts after a node that could not be emptied. Each restart repeats the
// moves of all the preceding nodes.
const mostRestarts = 64

// emptyAll closes and empties the first nodes of the list that are not excluded. It returns the
// first node that cannot be emptied, or nil. cost holds the number of pods to move per node, plus
// costly for each pod that must stay; excluded holds the nodes that failed before; total is the
// capacity of the cluster.
func (st *strategy) emptyAll(s *search, list []*cluster.Node, excluded map[*cluster.Node]bool,
	cost map[*cluster.Node]int64, total *shares, wanted int) *cluster.Node {
	var chosen []string
	for _, n := range list {
		switch {
		case len(chosen) == wanted || excluded[n]:
			continue
		case cost[n] >= costly:
			s.emptyNode(st, n, Emptying) // moves no pod, but records the reason
			continue
		case !total.isWorth(n, len(movablePods(n, st.w))):
			s.stayNode(st, n, NoBetterNode,
				"its share of the cluster's resources is less than half the share of pods that would have to move")
			continue
		}
		chosen = append(chosen, n.Name)
		if !isClosed(n) {
			s.w.closures.closeNode(n)
		}
	}

	for _, name := range chosen {
		if n := st.w.c.Node(name); !s.emptyNode(st, n, Emptying) {
			return n
		}
	}
	return nil
}

// costly is added to the cost of a node for each pod that must not be moved. It exceeds the number
// of pods on any node, so nodes with such a pod sort last, and are recognized by their cost.
const costly = 1_000_000

// shares is the total capacity of a cluster.
type shares struct {
	cpu, memory float64
	pods        int // pods that can run elsewhere
}

// clusterShares sums up the cluster in its current state.
func (w *world) clusterShares() (all shares) {
	for _, n := range w.c.Nodes {
		if n == nil {
			continue
		}
		all.cpu += float64(n.Size.MilliCPU)
		all.memory += float64(n.Size.Memory)
	}
	for _, p := range w.placed {
		if canMove(p) {
			all.pods++
		}
	}
	return all
}

// isWorth reports whether emptying a node is worth its moves: the node's share of the cluster's
// capacity must be at least half of its share of the movable pods.
//
//	10 equal nodes with 100 pods in all: a node is 10 % of the cluster
//	with 15 pods, 15 % of all: 2*10 >= 15, the node is emptied
//	with 25 pods: the node stays, and a node with fewer pods is emptied instead
func (all *shares) isWorth(n *cluster.Node, pods int) bool {
	freed := max(float64(n.Size.MilliCPU)/max(all.cpu, 1), float64(n.Size.Memory)/max(all.memory, 1))
	return 2*freed >= float64(pods)/float64(max(all.pods, 1))
}
