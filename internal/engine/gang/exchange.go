// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// exchangeVictims evicts other pods than some of the victims if fewer pods leave then, because a
// pod may make room for more members than a victim. It applies to members that are alike, or differ
// only in labels. It judges nodes by room, and then places the members again. The other pods are in
// no group, have no budget, and have at most the priority of every victim.
func (c *victimSearch) exchangeVictims(units [][]*cluster.Pod, gone *RemovedPods) [][]*cluster.Pod {
	if len(units) < 2 || c.pods.differ() && !c.needTheSame() || c.roomFilter() == nil || len(c.Profile.Outside)+len(c.Profile.Extenders) > 0 {
		return units
	}

	least, placers, highest := c.leastRequest(), c.pods.placers(), c.LowestPriority()-1
	var nodes []*cluster.Node
	index := map[*cluster.Node]int{}
	for _, v := range c.Decider.Plain().Evaluate(cluster.NewPod(placers[0].tentative.placed[0].Asked.Class, "", "")).Nodes {
		if v.Rejection == nil || !v.Rejection.Unresolvable {
			index[v.Node] = len(nodes)
			nodes = append(nodes, v.Node)
		}
	}
	if len(nodes) == 0 {
		return units // a filter failed
	}
	var victims []leaver // with negative amounts, because they return
	for _, unit := range units {
		highest = min(highest, unit[0].Class.Priority)
		if len(unit) == 1 {
			back := requestOf(unit[0].Class, least.name).negated()
			victims = append(victims, leaver{back, index[gone.NodeOf(unit[0])], 0, unit[0]})
		}
	}
	free := freeCapacityOn(nodes, least.name, func(p *cluster.Pod) (priority int64, leaves bool) {
		return int64(p.Class.Priority), p.Class.Priority <= highest && !p.Preempted &&
			c.Units.Groups.GroupOf(p.UID()) == nil && len(c.Cluster.BudgetsOf(p.Class)) == 0
	})
	spare := 0 // number of members that fit in addition to the placed ones
	for _, by := range placers {
		for _, m := range by.tentative.placed {
			free.nodes[index[m.Node]] = free.nodes[index[m.Node]].plus(least.amounts)
			spare--
		}
	}
	spare += least.countIn(free)

	gain := func(l leaver) int {
		return least.countOn(free.nodes[l.node].plus(l.amounts)) - least.countOn(free.nodes[l.node])
	}
	compare := func(x, y leaver) int {
		return cmp.Or(cmp.Compare(gain(x), gain(y)), cmp.Compare(y.priority, x.priority), x.pod.Started.Compare(y.pod.Started),
			cmp.Compare(x.pod.UID(), y.pod.UID()))
	}
	var leave, stay []*cluster.Pod
	move := func(l leaver, from *[]leaver, to *[]*cluster.Pod) {
		spare += gain(l)
		free.nodes[l.node] = free.nodes[l.node].plus(l.amounts)
		*from = slices.DeleteFunc(*from, func(other leaver) bool { return other.pod == l.pod })
		*to = append(*to, l.pod)
	}
	for len(victims) > 0 && !c.bound.isSpentTwice() {
		c.bound.addEffort(len(free.leavers))
		v := slices.MaxFunc(victims, compare)
		if spare+gain(v) >= 0 {
			move(v, &victims, &stay)
			continue
		}
		if len(free.leavers) == 0 {
			break
		}
		l := slices.MaxFunc(free.leavers, compare)
		if gain(l)+gain(v) <= 0 {
			break
		}
		move(l, &free.leavers, &leave)
	}
	if len(stay) <= len(leave) {
		return units
	}

	gone.Restore(stay)
	gone.Remove(leave...)
	if !c.pods.placeAgain() {
		gone.Restore(leave)
		gone.Remove(stay...)
		return units
	}
	units = slices.DeleteFunc(units, func(unit []*cluster.Pod) bool { return slices.Contains(stay, unit[0]) })
	units = append(units, rules.Mapped(leave, func(p *cluster.Pod) []*cluster.Pod { return []*cluster.Pod{p} })...)
	return c.reprieveVictims(units, gone)
}

// needTheSame reports whether all members need the same capacity of the same nodes, and nothing
// else.
func (r *Request) needTheSame() bool {
	first := r.Members[0].Asked.Class
	return !slices.ContainsFunc(r.Members, func(m *Member) bool {
		class := m.Asked.Class
		return !class.Simple || class.HasAffinity() || len(class.Spec.TopologySpreadConstraints) > 0 ||
			class.Demand != first.Demand || class.Needs != first.Needs
	})
}
