// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

	items = nil
	together := g.Tree()
	for _, g := range together {
		more, _ := c.listTried(g)
		items = append(items, more...)
	}
	t := c.attempts.newTree(g, items)
	var of *groupAttempt
	for _, a := range t.leaves {
		if a.trial = true; a.group == g {
			of = a
		}
	}
	if discord := c.attempts.findDiscord(together, items); discord != nil {
		return &decision.GroupTrial{Tried: len(of.members), Needed: of.attempt.Need, Message: discord.Error()}
	}
	return t.preview(of)
}

// listTried lists the pending members that an attempt would decide. If the group would not be
// tried, it lists all pending members and returns the reason.
func (c *Core) listTried(g *groups.Group) (items []*queue.Item, incomplete string) {
	for uid := range g.Members {
		item := c.pendingItem(uid)
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

// preview decides the pods, rolls the decision back, and returns the result for one group.
func (t *treeAttempt) preview(of *groupAttempt) *decision.GroupTrial {
	settled, err := t.placeSomehow()
	var nodes map[types.UID]string
	if settled {
		nodes = nodesByPod(of.attempt.CurrentPlaces())
	}
	t.rewind(t.root)
	of.resumeNominations()

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
			nodes = nodesByPod(plan.Places)
			of.describePlan(said, plan, nodes)
		} else if t.root == nil && of.profile.GroupPreemption {
			of.unhelped = of.words().wordsOf(searchOutcome(of.attempt, nil))
		}
		_, start := t.planStart(t.nominatedNodes(), time.Time{})
		said.ExpectedStart = metav1.NewTime(start)
	}
	for _, m := range of.members {
		said.Pods = append(said.Pods, of.describePlace(m, nodes[m.Pod.UID]))
	}
	return said
}

// describePlan adds the victims of a plan to a trial. If the plan need not wait for victims, the
// group fits now, and describePlan clears the message.
func (a *groupAttempt) describePlan(t *decision.GroupTrial, plan *gang.RoomPlan, nodes map[types.UID]string) {
	if !plan.Waits {
		t.Fit, t.Message = 0, ""
		for _, m := range a.members {
			if nodes[m.Pod.UID] != "" {
				t.Fit++
			}
		}
	}
	for _, unit := range plan.Victims {
		for _, victim := range unit {
			t.Victims = append(t.Victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name()})
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
