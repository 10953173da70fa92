// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// reprieveVictims puts unneeded units back until the effort is exhausted, and returns the other
// units.
func (c *victimSearch) reprieveVictims(units [][]*cluster.Pod, gone *RemovedPods) (leave [][]*cluster.Pod) {
	c.sortForReprieve(units)
	defer c.bound.extendPart()() // gives the reprieve at least half of the bound
	together := c.pods.leastTogether()
	for _, unit := range units {
		if c.bound.isSpentTwice() || !c.reprieve(unit, gone, together) {
			leave = append(leave, unit)
		}
	}
	return leave
}

// sortForReprieve orders units for reprieve: first the units that violate a budget by leaving, then
// the other units, each in order of importance.
func (c *victimSearch) sortForReprieve(units [][]*cluster.Pod) {
	breaks := map[*cluster.Pod]bool{}
	for _, unit := range units {
		breaks[unit[0]] = c.Units.BreakBudget(unit)
	}
	slices.SortStableFunc(units, func(x, y []*cluster.Pod) int {
		if breaks[x[0]] != breaks[y[0]] {
			if breaks[x[0]] {
				return -1
			}
			return 1
		}
		return c.Units.compareImportance(x, y)
	})
}

// reprieve puts a unit back if the pods still fit. Otherwise it changes nothing. At first only the
// members on the unit's nodes move. If this fails and the members differ, all members are placed
// again, in any order, unless their total request exceeds the free room.
func (c *victimSearch) reprieve(unit []*cluster.Pod, gone *RemovedPods, together amounts) bool {
	var nodes []*cluster.Node
	for _, p := range unit {
		nodes = append(nodes, gone.NodeOf(p))
	}
	moving := c.takeFrom(nodes)
	gone.Restore(unit)
	c.bound.addEffort(costOfRemoval * len(unit))

	if !slices.ContainsFunc(moving, func(m movingMembers) bool { return !m.placer.passFits() }) && c.fitsBeside(unit) {
		return true
	}
	for _, m := range slices.Backward(moving) {
		m.placer.tentative.Rewind(m.stay)
	}
	if c.pods.differ() && !c.bound.isSpent() && c.isFree(together) && c.pods.placeAgain() {
		return true
	}

	gone.Remove(unit...)
	for _, m := range moving {
		m.placer.tentative.PlaceAll(m.were)
	}
	return false
}

// fitsBeside reports whether all members may stay on their nodes after a unit was put back.
// Affinity terms of the unit or of a member may take effect on any node, so the members concerned
// are judged again.
func (c *victimSearch) fitsBeside(unit []*cluster.Pod) bool {
	matters := slices.ContainsFunc(unit, func(p *cluster.Pod) bool { return p.Class.HasAffinity() })
	for _, p := range c.pods.placers() {
		for _, m := range p.tentative.placed {
			class := m.Waiting.Class
			if !matters && !class.HasAffinity() && len(class.Spec.TopologySpreadConstraints) == 0 {
				continue
			}
			c.bound.addEffort(costOfDecision)
			if !p.tentative.fitsAgain(m, c.Decider.Plain()) {
				return false
			}
		}
	}
	return true
}

// movingMembers are members of a group taken off their nodes.
type movingMembers struct {
	placer *Placer
	were   []Place
	stay   int // number of other placed members
}

// takeFrom takes the members off some nodes.
func (c *victimSearch) takeFrom(nodes []*cluster.Node) (moving []movingMembers) {
	for _, p := range c.pods.placers() {
		were := p.tentative.removeFrom(nodes)
		moving = append(moving, movingMembers{p, were, len(p.tentative.placed)})
	}
	return moving
}

// isFree reports whether the CPU and memory that are free on all nodes, or used by members, suffice
// for the wanted amounts.
func (c *victimSearch) isFree(wanted amounts) bool {
	if c.roomFilter() == nil {
		return true
	}

	var free amounts
	for i := range c.Cluster.Rooms {
		room := &c.Cluster.Rooms[i]
		free = free.plus(amounts{cpu: max(0, room.CPU-room.RequestedCPU), memory: max(0, room.Memory-room.RequestedMemory)})
	}
	for _, p := range c.pods.placers() {
		for _, m := range p.tentative.placed {
			free = free.plus(requestOf(m.Waiting.Class, ""))
		}
	}
	return free.cpu >= wanted.cpu && free.memory >= wanted.memory
}
