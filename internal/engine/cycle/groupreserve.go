package cycle

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
)

// reserve returns the nodes on which room is held for members of a group that fits nowhere, by pod;
// nil if none is.
func (a *groupAttempt) reserve() map[types.UID]string {
	bounds := a.profile.Reservations
	if a.rest || len(a.members) < a.need {
		return nil
	}
	if !a.reserved.due(a.group, bounds) {
		a.reserved.over(a.group)
		return nil
	}
	if a.reserved.held != nil && a.stillHeld() >= a.need {
		return a.reserved.held.Nodes
	}

	a.lift()
	places := a.planReservation()
	a.putBack()
	if len(places) < a.need || a.shareOf(places) > bounds.Share {
		a.reserved.over(a.group)
		return nil
	}

	nodes := map[types.UID]string{}
	for _, p := range places {
		nodes[p.Pod.UID] = p.found.Node.Name
	}

	a.reserved.hold(a.group, nodes, bounds.For)
	return nodes
}

// lift withdraws the nominations of members for which room is held while the group is decided, so
// that they do not keep room from each other.
func (a *groupAttempt) lift() {
	if a.reserved.isFor(a.group) {
		a.lifted = a.reserved.lift()
	}
}

// putBack restores these nominations.
func (a *groupAttempt) putBack() {
	a.reserved.putBack(a.lifted)
	a.lifted = nil
}

// letGo ends the reservation of a group that is placed. Room that no member took may help other
// pods.
func (a *groupAttempt) letGo() {
	a.reserved.over(a.group)
	a.group.Since = time.Time{}
	for _, p := range a.lifted {
		if placed := a.cluster.Pod(p.UID); placed == nil || placed.NodeName != p.Nominated {
			a.news.left(p, a.cluster.Node(p.Nominated), nil)
		}
	}
}

// stillHeld counts the members whose node, on which room is held for them, still exists.
func (a *groupAttempt) stillHeld() (count int) {
	for _, m := range a.members {
		if a.cluster.Node(a.reserved.held.Nodes[m.Pod.UID]) != nil {
			count++
		}
	}
	return count
}

// shareOf is the share of the cluster's CPU or memory that the places take, whichever is more.
func (a *groupAttempt) shareOf(places []place) float64 {
	var cpu, memory, allCPU, allMemory float64
	for i := range a.cluster.Rooms {
		allCPU, allMemory = allCPU+float64(a.cluster.Rooms[i].CPU), allMemory+float64(a.cluster.Rooms[i].Memory)
	}
	for _, p := range places {
		r := &p.item.Class.Requests
		cpu, memory = cpu+float64(r.MilliCPU), memory+float64(r.Memory)
	}
	return max(cpu/max(allCPU, 1), memory/max(allMemory, 1))
}

// planReservation looks for the nodes on which the group is likely to fit soonest: where the fewest
// pods have to end, in the best domain of the topology key. It leaves the cluster as it was.
func (a *groupAttempt) planReservation() []place {
	a.begin()
	if a.domains == 0 {
		nodes := slices.DeleteFunc(slices.Clone(a.cluster.Nodes), func(n *cluster.Node) bool { return n == nil })
		if _, ok := a.boundOn(nodes, a.leastRequest(), a.ends); !ok {
			return nil
		}
		a.effort = 0
		places, _ := a.onceEnded(a.emptiestFirst(nodes))
		return places
	}

	key := a.group.TopologyKey()
	domains, err := a.domainsOf(key)
	if err != nil {
		return nil
	}

	defer a.sayAgain(a.failures())
	var best []place
	fewest := 0
	for b := range a.inTurn(a.promising(key, domains, a.ends)) {
		if best != nil && b.count >= fewest {
			continue
		}
		a.confine(key, b.domain)
		places, ended := a.onceEnded(a.emptiestFirst(a.byDomain[b.domain]))
		if places != nil && (best == nil || ended < fewest) {
			best, fewest = places, ended
		}
	}

	return best
}

// ends tells whether a pod is expected to end so that the group has its room.
func (a *groupAttempt) ends(p *cluster.Pod) (priority int64, leaves bool) {
	return 0, mayEnd(p) && a.groups.Of(p.UID) != a.group
}

// emptiestFirst orders nodes by the share of their CPU that is requested, the lowest first.
func (a *groupAttempt) emptiestFirst(nodes []*cluster.Node) []*cluster.Node {
	requested := func(n *cluster.Node) float64 {
		room := &a.cluster.Rooms[n.Index]
		return float64(room.RequestedCPU) / float64(max(room.CPU, 1))
	}
	return slices.SortedStableFunc(slices.Values(nodes), func(x, y *cluster.Node) int { return cmp.Compare(requested(x), requested(y)) })
}

// onceEnded places as many members as are needed as if pods that may end had ended: the oldest on
// each node, then the next on each, until the members fit. One pod on each of many nodes ends
// sooner than many pods on one node. It leaves the cluster as it was. It returns nil if the members
// do not fit even when all of these pods have ended, or if the effort is used up before.
func (a *groupAttempt) onceEnded(nodes []*cluster.Node) (places []place, ended int) {
	gone := gang.Without(a.cluster)
	defer gone.RestoreAfter(0)
	defer a.undo(0)
	fits := func() bool { return a.pass(a.members, false) == nil && len(a.placed) >= a.need }
	done := fits()

	for !done {
		before, untried := gone.Len(), 0
		for _, n := range nodes {
			p := a.nextToEnd(n)
			if p == nil {
				continue
			}
			gone.Remove(p)
			if a.effort += costOfRemoval; a.spent() {
				return nil, 0
			}
			if untried++; untried >= a.need-len(a.placed) {
				untried = 0
				if done = fits(); done {
					break
				}
			}
		}
		if gone.Len() == before {
			return nil, 0
		}
		done = done || fits()
	}

	return a.plan(nil).places, gone.Len()
}

// nextToEnd returns the pod of a node that is expected to end first: one that is terminating, or
// the oldest; nil if none is expected to end.
func (a *groupAttempt) nextToEnd(n *cluster.Node) (first *cluster.Pod) {
	for _, p := range n.Pods {
		if first == nil || sooner(p, first) {
			if _, ends := a.ends(p); ends {
				first = p
			}
		}
	}
	return first
}

func sooner(p, than *cluster.Pod) bool {
	if p.Terminating != than.Terminating {
		return p.Terminating
	}
	return cmp.Or(p.Created.Compare(than.Created), cmp.Compare(p.UID, than.UID)) < 0
}

// mayEnd tells whether a pod is expected to end by itself. Pods of controllers that replace every
// pod are not, nor are static pods.
func mayEnd(p *cluster.Pod) bool {
	if p.Terminating || p.Class.Controller == nil {
		return true
	}
	switch p.Class.Controller.Kind {
	case "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Node":
		return false
	}
	return true
}
