// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// planReservation looks for the nodes where the group is likely to fit soonest, because the fewest
// pods must end, in the best domain of the topology key. It restores the cluster.
func (r *RoomMaker) planReservation() []Place {
	r.bound.begin()
	if r.domains.count == 0 {
		nodes := slices.Collect(r.eachNode)
		if _, ok := r.boundOn(nodes, r.leastRequest(), r.mayEnd); !ok {
			return nil
		}
		r.bound.effort = 0
		places, _ := r.placeOnceEnded(r.sortByUse(nodes))
		return places
	}

	domains, err := r.domains.listDomains()
	if err != nil {
		return nil
	}
	defer r.SetFailures(r.Failures())

	var best []Place
	fewest := 0
	for b := range inTurn(r.bound, r.domains.listPromising(domains, r.mayEnd)) {
		if best != nil && b.count >= fewest {
			continue
		}
		r.domains.confine(b.domain)
		places, ended := r.placeOnceEnded(r.sortByUse(r.domains.nodesByDomain()[b.domain]))
		if places != nil && (best == nil || ended < fewest) {
			best, fewest = places, ended
		}
	}

	return best
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

// placeOnceEnded places the needed number of members under the assumption that ending pods have
// ended: first the oldest pod on each node, then the second oldest on each node, and so on until
// the members fit. One pod on each of many nodes is expected to end sooner than many pods on one
// node. It restores the cluster. It returns nil if the members do not fit even after all of these
// pods have ended, or if the effort is exhausted first.
func (r *RoomMaker) placeOnceEnded(nodes []*cluster.Node) (places []Place, ended int) {
	gone := Without(r.Cluster)
	defer gone.RestoreAfter(0)
	defer r.tentative.Rewind(0)

	for fits := r.placer.passFits(); !fits; {
		before, untried := gone.Len(), 0
		for _, n := range nodes {
			p := r.findNextToEnd(n)
			if p == nil {
				continue
			}
			gone.Remove(p)
			if r.bound.addEffort(costOfRemoval); r.bound.isSpent() {
				return nil, 0
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

		if gone.Len() == before {
			return nil, 0
		}
		fits = fits || r.placer.passFits()
	}

	return r.describePlan(nil, true).Places, gone.Len()
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
