// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// KnownEnd returns the time when a pod ends, or zero if it is unknown.
type KnownEnd func(*cluster.Pod) time.Time

// planReservation looks for the nodes where a pod set is likely to fit soonest, because the fewest
// pods must end, in the best domain of the topology key. It restores the cluster. The pod set is
// the group, or the tree with these members.
func (r *RoomMaker) planReservation(set *victimSearch, among map[*cluster.Node]bool, known KnownEnd) (best []Place, start time.Time) {
	r.bound.begin()
	if r.TopologyKey == "" {
		nodes := r.sortByUse(r.eachNode, among)
		if _, ok := r.boundOn(nodes, r.leastRequest(), r.mayEnd); !ok {
			return nil, start
		}
		r.bound.effort = 0
		best, _, start = set.placeOnceEnded(nodes, known)
		return best, start
	}

	domains, err := r.domains.listDomains()
	if err != nil {
		return nil, start
	}
	defer r.SetFailures(r.Failures())

	fewest := 0
	for b := range inTurn(r.bound, r.domains.listPromising(domains, r.mayEnd)) {
		nodes := r.sortByUse(slices.Values(r.domains.nodesByDomain()[b.domain]), among)
		if best != nil && b.count >= fewest || len(nodes) == 0 {
			continue
		}
		r.domains.confine(b.domain)
		places, ended, at := set.placeOnceEnded(nodes, known)
		if places != nil && (best == nil || ended < fewest) {
			best, fewest, start = places, ended, at
		}
	}

	return best, start
}

// mayEnd is the leaveRule for pods that leave without eviction: all pods expected to end, except
// for the pods of the group or its tree.
func (c *victimSearch) mayEnd(p *cluster.Pod) (priority int64, leaves bool) {
	return 0, endsByItself(p) && !c.Units.Groups.GroupOf(p.UID()).SharesTree(c.Group)
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

// sortByUse orders nodes, among the given nodes or all, by their requested share of CPU, the lowest
// first.
func (c *victimSearch) sortByUse(all iter.Seq[*cluster.Node], among map[*cluster.Node]bool) []*cluster.Node {
	requested := func(n *cluster.Node) float64 {
		room := &c.Cluster.Rooms[n.Index]
		return float64(room.RequestedCPU) / float64(max(room.CPU, 1))
	}
	nodes := slices.DeleteFunc(slices.Collect(all), func(n *cluster.Node) bool { return among != nil && !among[n] })
	slices.SortStableFunc(nodes, func(x, y *cluster.Node) int { return cmp.Compare(requested(x), requested(y)) })
	return nodes
}

// placeOnceEnded places the pod set under the assumption that pods have ended: first all pods with
// a known end, in the order of their ends, then the oldest other pod on each node, the second
// oldest on each node, and so on until the pod set fits. One pod on each of many nodes is expected
// to end sooner than many pods on one node. It restores the cluster. It returns nil if the pod set
// does not fit even after all of these pods have ended, or if the effort is exhausted first. start
// is the end of the last of these pods on the nodes of the members.
func (c *victimSearch) placeOnceEnded(nodes []*cluster.Node, known KnownEnd) (places []Place, ended int, start time.Time) {
	gone := Without(c.Cluster)
	defer gone.RestoreAfter(0)
	defer c.Cluster.ReleaseClaims()()
	defer c.pods.rewind()

	round := c.listKnown(nodes, known)
	for fits := c.pods.fit(); !fits; round = nil {
		if len(round) == 0 {
			round = c.listNextToEnd(nodes)
		}
		if len(round) == 0 {
			return nil, 0, start
		}

		untried := 0
		for _, p := range round {
			gone.Remove(p)
			if c.bound.addEffort(costOfRemoval); c.bound.isSpent() {
				return nil, 0, start
			}

			if untried++; untried >= c.pods.fewestToEnd(gone.Len()) {
				untried = 0
				if fits = c.pods.fit(); fits {
					break
				}
			}
		}
		fits = fits || untried > 0 && c.pods.fit()
	}

	taken := c.takenNodes()
	for _, p := range slices.Backward(gone.pods) {
		if taken[gone.NodeOf(p)] {
			start = known(p)
			break
		}
	}
	return c.describePlan(nil, true).Places, gone.Len(), start
}

// listKnown lists the pods on nodes with a known end, in the order of their ends.
func (c *victimSearch) listKnown(nodes []*cluster.Node, known KnownEnd) (list []*cluster.Pod) {
	for _, n := range nodes {
		for _, p := range n.Pods {
			if _, ends := c.mayEnd(p); ends && !known(p).IsZero() {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(x, y *cluster.Pod) int {
		return cmp.Or(known(x).Compare(known(y)), cmp.Compare(x.UID(), y.UID()))
	})
	return list
}

// listNextToEnd lists the pod on each node that is expected to end first.
func (c *victimSearch) listNextToEnd(nodes []*cluster.Node) (list []*cluster.Pod) {
	for _, n := range nodes {
		if p := c.findNextToEnd(n); p != nil {
			list = append(list, p)
		}
	}
	return list
}

// findNextToEnd returns the pod on a node that is expected to end first: a terminating pod, or else
// the oldest pod; nil if no pod is expected to end.
func (c *victimSearch) findNextToEnd(n *cluster.Node) (first *cluster.Pod) {
	for _, p := range n.Pods {
		if first == nil || endsSooner(p, first) {
			if _, ends := c.mayEnd(p); ends {
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
	return cmp.Or(p.Created.Compare(than.Created), cmp.Compare(p.UID(), than.UID())) < 0
}
