// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// TryGroup returns the result of a hypothetical attempt for the pending pods of a group. It leaves
// all state unchanged. It returns nil for an unknown group, or a group without pending pods.
func (c *Core) TryGroup(name cluster.Name) *decision.GroupTrial {
	g := c.groups.Get(name)
	if g == nil {
		return nil
	}

	items, incomplete := c.listTried(g)
	if len(items) == 0 {
		return nil
	}
	if incomplete != "" {
		t := &decision.GroupTrial{Incomplete: true, Message: incomplete}
		for _, item := range items {
			t.Pods = append(t.Pods, decision.GroupPlace{Name: item.Pod.Name, Message: incomplete})
		}
		return t
	}

	if root := g.Root(); root != nil {
		return c.tryTree(root, g)
	}
	a := c.attempts.newGroup(g, items, nil)
	if discord := c.attempts.findDiscord([]*groups.Group{g}, items); discord != nil {
		return &decision.GroupTrial{Tried: len(a.members), Needed: a.attempt.Need, Message: discord.Error()}
	}
	return a.preview()
}

// listTried lists the pending members that an attempt would decide. If the group would not be
// tried, it lists all pending members and returns the reason.
func (c *Core) listTried(g *groups.Group) (items []*queue.Item, incomplete string) {
	for uid := range g.Members {
		item := c.queue.Get(uid)
		if item == nil || item.Place() == queue.Taken {
			continue
		}
		if why := c.Incomplete(uid); why != "" {
			incomplete = why
		} else if item.Place() == queue.Gated {
			continue
		}
		items = append(items, item)
	}
	slices.SortFunc(items, compareMembers)
	return items, incomplete
}

// tryTree returns the result of a hypothetical attempt for the pending pods of a tree, for one of
// its groups.
func (c *Core) tryTree(root *groups.Composite, g *groups.Group) *decision.GroupTrial {
	tree := root.Leaves()
	var items []*queue.Item
	for _, g := range tree {
		more, _ := c.listTried(g)
		items = append(items, more...)
	}
	t := c.attempts.newTree(root, items)
	for _, a := range t.leaves {
		a.trial = true
	}
	a := t.attemptOf[g]
	if discord := c.attempts.findDiscord(tree, items); discord != nil {
		return &decision.GroupTrial{Tried: len(a.members), Needed: a.attempt.Need, Message: discord.Error()}
	}
	return t.preview(a)
}

// preview decides the tree, rolls it back, and returns the result for one group.
func (t *treeAttempt) preview(of *groupAttempt) *decision.GroupTrial {
	settled, err := t.placeSomehow()
	nodes := map[*member]string{}
	if settled {
		of.noteNodes(nodes, of.attempt.CurrentPlaces())
	}
	t.rewind(t.root)

	verdict := of.attempt.Verdict()
	said := &decision.GroupTrial{Tried: verdict.Tried, Fit: verdict.Fit, Needed: verdict.Needed}
	switch {
	case err != nil:
		said.Fit, said.Message = 0, err.Error()
	case len(nodes) > 0:
		said.Fit = len(nodes)
	default:
		said.Message = t.reasonOf(of)
		if plan := t.planRoom(); plan != nil && !settled {
			of.noteNodes(nodes, plan.Places)
			of.describePlan(said, plan, len(nodes))
		}
	}
	for _, m := range of.members {
		said.Pods = append(said.Pods, of.describePlace(m, nodes[m]))
	}
	return said
}

// preview decides the members, rolls the decision back, and returns the result.
func (a *groupAttempt) preview() *decision.GroupTrial {
	a.trial = true
	a.suspendNominations()
	err := a.attempt.Place()
	verdict := a.attempt.Verdict()
	t := &decision.GroupTrial{Tried: verdict.Tried, Fit: verdict.Fit, Needed: verdict.Needed}
	nodes := map[*member]string{}
	fits := a.attempt.HasEnough()
	if err == nil && fits {
		a.noteNodes(nodes, a.attempt.CurrentPlaces())
		t.Fit = len(a.attempt.Placed())
	}
	a.attempt.Rewind()
	a.resumeNominations()

	switch {
	case err != nil:
		t.Fit, t.Message = 0, err.Error()
	case !fits:
		t.Message = verdict.Reason()
		if plan := a.planRoom(); plan != nil {
			a.describePlan(t, plan, len(plan.Places))
			a.noteNodes(nodes, plan.Places)
		} else if a.profile.GroupPreemption {
			a.unhelped = a.words().wordsOf(outcomeOf(a.attempt, nil))
		}
	}
	for _, m := range a.members {
		t.Pods = append(t.Pods, a.describePlace(m, nodes[m]))
	}
	return t
}

// noteNodes records the nodes chosen for members.
func (a *groupAttempt) noteNodes(nodes map[*member]string, places []gang.Place) {
	for _, p := range places {
		if m := a.byAsked[p.Member]; m != nil { // in a plan for a tree, the other members belong to other groups
			nodes[m] = p.Decision.Node.Name
		}
	}
}

// describePlan adds the victims of a plan to a trial. If the plan need not wait for victims, the
// group fits now, and describePlan clears the message.
func (a *groupAttempt) describePlan(t *decision.GroupTrial, plan *gang.RoomPlan, placed int) {
	if !plan.Waits {
		t.Fit, t.Message = placed, ""
	}
	for _, unit := range plan.Victims {
		for _, victim := range unit {
			t.Victims = append(t.Victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})
		}
	}
}

// describePlace returns a member's node, or the reason for having no node.
func (a *groupAttempt) describePlace(m *member, node string) decision.GroupPlace {
	p := decision.GroupPlace{Name: m.Pod.Name, Node: node}
	switch failure := m.asked.Failure; {
	case node != "":
	case failure != nil && m.asked.Reached():
		p.Message = failure.Message("")
	default:
		p.Message = a.why(m).message
	}
	return p
}
