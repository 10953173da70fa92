// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// setupDefragment sets up the goal of making room for pending pods. If the policy names pods, the
// goal makes room for all of them or for none. Otherwise it makes room for any pending pods,
// handling a pod group as a unit.
//
// Room is made one level deep: an obstructing pod moves to a node with room now, and never pushes
// another pod away.
func (st *strategy) setupDefragment() {
	w, all := st.w, len(st.Defragment.Pods) == 0
	waiting := func() (list []*pod) {
		for _, p := range w.waiting {
			name := types.NamespacedName{Namespace: p.Namespace(), Name: p.Name()}
			if all && w.schedulerOf(p) != nil && len(p.Spec().SchedulingGates) == 0 || slices.Contains(st.Defragment.Pods, name) {
				list = append(list, p)
			}
		}
		return list
	}

	st.gauge = &ratio{"pods waiting for room", func() int64 { return int64(len(waiting())) }}
	// An attempt is expensive, and a second one in the same round would have the same result, so
	// each round makes one attempt.
	st.attempts = func(s *search) (moved bool) {
		if s.tried[st] || len(waiting()) == 0 {
			return false
		}
		s.tried[st] = true
		if !all {
			return st.makeRoomForAll(s, waiting)
		}
		// The list is a copy, since making room for one pod places further pods as well.
		done := map[*pod]bool{}
		for _, first := range slices.Clone(waiting()) {
			if done[first] || first.Node != nil {
				continue
			}
			moved = st.makeRoomForAll(s, func() (list []*pod) {
				for _, p := range waiting() {
					if p == first || isSameGroup(p, first) {
						done[p] = true
						list = append(list, p)
					}
				}
				return list
			}) || moved
		}
		return moved
	}
}

// isSameGroup reports whether two pods belong to one pod group.
func isSameGroup(a, b *pod) bool {
	x, y := a.Spec().SchedulingGroup, b.Spec().SchedulingGroup
	return x != nil && y != nil && a.Namespace() == b.Namespace() && reflect.DeepEqual(x, y)
}

// makeRoomForAll makes room for all waiting pods, or for none. A pod group with room for some of
// its pods is worth nothing, so the moves for the first of them are undone if there is no room for
// the last.
func (st *strategy) makeRoomForAll(s *search, waiting func() []*pod) bool {
	mark := s.w.Mark()
	for left := waiting(); len(left) > 0; left = waiting() {
		if !st.makeRoom(s, left[0]) {
			s.w.Undo(mark)
			for _, p := range waiting() {
				s.recordStay(st, p, NoBetterNode, "no node can be made fit for it with moves one level deep")
			}
			return false
		}
		// Without this check for progress the loop would never end.
		if len(waiting()) >= len(left) {
			s.w.Undo(mark)
			return false
		}
	}
	return true
}

// widest bounds the nodes tried for one pod. Each try moves pods and undoes the moves, so it costs
// as much as planning them. Nodes are tried by descending free room; those beyond the bound are the
// least likely to need few moves.
const widest = 64

// makeRoom finds the node requiring the fewest moves, and makes them. On each node, it first moves
// the movable pods, the largest first, until the pending pod fits. Then it retries without each of
// these moves in turn, and spares a pod if the pending pod fits without its move.
func (st *strategy) makeRoom(s *search, p *pod) bool {
	w := st.w
	list := slices.DeleteFunc(slices.Clone(w.c.Nodes), func(n *cluster.Node) bool {
		return n == nil || isClosed(n) || w.whyLeaving(n) != "" || !st.sees(n) || !w.suitsPod(p, n)
	})
	slices.SortFunc(list, func(a, b *cluster.Node) int {
		return cmp.Or(cmp.Compare(spareFraction(b, p), spareFraction(a, p)), cmp.Compare(a.Name, b.Name))
	})
	var best *cluster.Node
	var spared map[*pod]bool
	fewest := 0

	for _, n := range list[:min(len(list), widest)] {
		mark := w.Mark()
		moved, ok := st.tryRoom(s, p, n, nil)
		w.Undo(mark)
		if !ok {
			continue
		}
		without := map[*pod]bool{}
		for _, v := range moved {
			without[v] = true
			mark := w.Mark()
			if _, ok := st.tryRoom(s, p, n, without); !ok {
				delete(without, v)
			}
			w.Undo(mark)
		}
		if count := len(moved) - len(without); best == nil || count < fewest {
			best, spared, fewest = n, without, count
		}
	}

	if best == nil {
		return false
	}
	_, ok := st.tryRoom(s, p, best, spared)
	return ok
}

// spareFraction returns the free fraction of a node's scarcest resource relevant to the pod. The
// devices requested by the pod, CPU and memory all count. The result is 1 for an empty node.
func spareFraction(n *cluster.Node, p *pod) float64 {
	least := 1.0
	for name := range p.Class.Requests.Scalars {
		all := float64(n.Size.Amount(name))
		least = min(least, (all-float64(n.Requested.Amount(name)))/max(all, 1))
	}
	least = min(least, float64(n.Size.MilliCPU-n.Requested.MilliCPU)/max(float64(n.Size.MilliCPU), 1))
	return min(least, float64(n.Size.Memory-n.Requested.Memory)/max(float64(n.Size.Memory), 1))
}

// tryRoom moves pods off a node, except for the spared ones, until the pending pod fits.
//
// The node is closed while its pods move, so that none of their successors lands on it. It is then
// opened to check whether the pending pod is placed. A placement on another node is just as good.
// If ok is false, the caller must undo the moves.
func (st *strategy) tryRoom(s *search, p *pod, n *cluster.Node, spared map[*pod]bool) (moved []*pod, ok bool) {
	w := st.w
	if scheduler := w.schedulerOf(p); scheduler == nil {
		return nil, false
	}

	w.closures.closeNode(n)
	for _, v := range movablePods(w.c.Node(n.Name), w) {
		if spared[v] || v == p {
			continue
		}
		if code, _ := s.refusalOf(st, v); code != "" {
			continue
		}
		is := st.moveRequirements()
		is.within = true
		if why := s.makeMove(st, v, is, fmt.Sprintf("make room for %s/%s on %s", p.Namespace(), p.Name(), n.Name),
			MakingRoom); why.code != "" {
			continue
		}
		moved = append(moved, v)
		// The move itself may have freed room elsewhere.
		if w.placed[p.UID()] != nil {
			break
		}
		mark := s.w.Mark()
		w.closures.openNode(n)
		w.placeWaiting()
		if w.placed[p.UID()] != nil {
			return moved, true
		}
		s.w.Undo(mark)
	}

	w.closures.openNode(n)
	return moved, w.placed[p.UID()] != nil
}
