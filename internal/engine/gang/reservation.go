// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// KnownEnd returns the time when a pod ends, or zero if it is unknown.
type KnownEnd func(*cluster.Pod) time.Time

// planReservation looks for the nodes where the group is likely to fit soonest, because the fewest
// pods must end, in the best domain of the topology key. It restores the cluster.
func (r *RoomMaker) planReservation(among map[*cluster.Node]bool, known KnownEnd) (best []Place, start time.Time) {
	others := func(n *cluster.Node) bool { return among != nil && !among[n] }
	r.bound.begin()
	if r.domains.count == 0 {
		nodes := slices.DeleteFunc(slices.Collect(r.eachNode), others)
		if _, ok := r.boundOn(nodes, r.leastRequest(), r.mayEnd); !ok {
			return nil, start
		}
		r.bound.effort = 0
		best, _, start = r.placeOnceEnded(r.sortByUse(nodes), known)
		return best, start
	}

	domains, err := r.domains.listDomains()
	if err != nil {
		return nil, start
	}
	defer r.SetFailures(r.Failures())

	fewest := 0
	for b := range inTurn(r.bound, r.domains.listPromising(domains, r.mayEnd)) {
		nodes := slices.DeleteFunc(slices.Clone(r.domains.nodesByDomain()[b.domain]), others)
		if best != nil && b.count >= fewest || len(nodes) == 0 {
			continue
		}
		r.domains.confine(b.domain)
		places, ended, at := r.placeOnceEnded(r.sortByUse(nodes), known)
		if places != nil && (best == nil || ended < fewest) {
			best, fewest, start = places, ended, at
		}
	}

	return best, start
}

// mayEnd is the leaveRule for pods that leave without eviction: all pods expected to end, except
// for the group's pods.
func (r *RoomMaker) mayEnd(p *cluster.Pod) (priority int64, leaves bool) {
	return 0, endsByItself(p) && r.Units.Groups.GroupOf(p.UID) != r.Group
}

// endsByItself reports whether a pod is expected to end. Static pods, and pods of controllers that
// replace every pod, are not expected to end.
func endsByItself(p *cluster.Pod) bool {
	if p.Terminating || p.Class.Controller == nil {
		return true
	}
	switch p.Class.Controller.Kind {
	case "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Node":
		return false
	}
	return true
}

// sortByUse orders nodes by their requested share of CPU, the lowest first.
func (r *RoomMaker) sortByUse(nodes []*cluster.Node) []*cluster.Node {
	requested := func(n *cluster.Node) float64 {
		room := &r.Cluster.Rooms[n.Index]
		return float64(room.RequestedCPU) / float64(max(room.CPU, 1))
	}
	return slices.SortedStableFunc(slices.Values(nodes), func(x, y *cluster.Node) int {
		return cmp.Compare(requested(x), requested(y))
	})
}

// placeOnceEnded places the needed number of members under the assumption that pods have ended:
// first all pods with a known end, in the order of their ends, then the oldest other pod on each
// node, the second oldest on each node, and so on until the members fit. One pod on each of many
// nodes is expected to end sooner than many pods on one node. It restores the cluster. It returns
// nil if the members do not fit even after all of these pods have ended, or if the effort is
// exhausted first. start is the end of the last of these pods on the nodes of the members.
func (r *RoomMaker) placeOnceEnded(nodes []*cluster.Node, known KnownEnd) (places []Place, ended int, start time.Time) {
	gone := Without(r.Cluster)
	defer gone.RestoreAfter(0)
	defer r.tentative.Rewind(0)

	round := r.listKnown(nodes, known)
	for fits := r.placer.passFits(); !fits; round = nil {
		if len(round) == 0 {
			round = r.listNextToEnd(nodes)
		}
		if len(round) == 0 {
			return nil, 0, start
		}

		untried := 0
		for _, p := range round {
			gone.Remove(p)
			if r.bound.addEffort(costOfRemoval); r.bound.isSpent() {
				return nil, 0, start
			}

			// Assume that each ended pod makes room for at most one member, so that trying to place
			// the members earlier is futile.
			if untried++; untried >= r.Need-len(r.tentative.placed) {
				untried = 0
				if fits = r.placer.passFits(); fits {
					break
				}
			}
		}
		fits = fits || r.placer.passFits()
	}

	for _, p := range slices.Backward(gone.pods) {
		if slices.ContainsFunc(r.tentative.placed, func(m *Member) bool { return m.Node == gone.NodeOf(p) }) {
			start = known(p)
			break
		}
	}
	return r.describePlan(nil, true).Places, gone.Len(), start
}

// listKnown lists the pods on nodes with a known end, in the order of their ends.
func (r *RoomMaker) listKnown(nodes []*cluster.Node, known KnownEnd) (list []*cluster.Pod) {
	for _, n := range nodes {
		for _, p := range n.Pods {
			if _, ends := r.mayEnd(p); ends && !known(p).IsZero() {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(x, y *cluster.Pod) int {
		return cmp.Or(known(x).Compare(known(y)), cmp.Compare(x.UID, y.UID))
	})
	return list
}

// listNextToEnd lists the pod on each node that is expected to end first.
func (r *RoomMaker) listNextToEnd(nodes []*cluster.Node) (list []*cluster.Pod) {
	for _, n := range nodes {
		if p := r.findNextToEnd(n); p != nil {
			list = append(list, p)
		}
	}
	return list
}

// findNextToEnd returns the pod on a node that is expected to end first: a terminating pod, or else
// the oldest pod; nil if no pod is expected to end.
func (r *RoomMaker) findNextToEnd(n *cluster.Node) (first *cluster.Pod) {
	for _, p := range n.Pods {
		if first == nil || endsSooner(p, first) {
			if _, ends := r.mayEnd(p); ends {
				first = p
			}
		}
	}
	return first
}

func endsSooner(p, than *cluster.Pod) bool {
	if p.Terminating != than.Terminating {
		return p.Terminating
	}
	return cmp.Or(p.Created.Compare(than.Created), cmp.Compare(p.UID, than.UID)) < 0
}
