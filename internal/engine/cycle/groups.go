// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"fmt"
	"slices"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// podGroups counts the placed and missing pods of groups, and writes their conditions. The pods of
// a group are items of the queue, like all pending pods. When the first of them is popped, its
// siblings are taken as well. In one step, all of them are decided, counted on their nodes and
// passed through Permit, or given up; see scheduleGroup. Afterwards each pod is a separate
// placement.
//
// Until a gang has been scheduled, it has a quorum: minCount of its pods must have nodes together,
// including pods that already have a node. A gang counts as scheduled once minCount of its pods
// were bound and the PodGroup records it (PodGroupInitiallyScheduled is True), for as long as one
// of its pods is bound. A replacement pod of a scheduled gang is placed individually, regardless of
// the other pods. Terminating pods do not count; otherwise their replacements could be placed as
// half a gang.
type podGroups struct {
	*common
	ready      *readiness
	placements *placements
	gates      groups.Gates // enabled features
	units      gang.Units
	progress   groupProgress
	held       heldMembers
}

// unitsChanged wakes waiting pods after a group with pods on nodes has appeared, changed or been
// deleted. The pods that the waiting pods may preempt depend on the group's disruption mode and
// priority.
func (gs *podGroups) unitsChanged(label string, all ...*groups.Group) {
	if len(gs.units.OnNodes(all...)) == 0 {
		return
	}
	for _, item := range gs.queue.Sorted() {
		if item.Place() == queue.Waiting {
			gs.queue.Wake(item.Pod.UID, label, gs.now)
		}
	}
}

// wakeMembers wakes the members in these places of the queue, including the members of the other
// groups of the tree. Waking a gated member reruns its gate.
func (gs *podGroups) wakeMembers(g *groups.Group, label string, places ...queue.Place) {
	if g == nil {
		return
	}
	for _, item := range gs.listMembers(g, places...) {
		gs.queue.Wake(item.Pod.UID, label, gs.now)
	}
}

// listMembers lists the members in these places of the queue, in arrival order. It includes the
// members of the other groups of the tree.
func (gs *podGroups) listMembers(g *groups.Group, places ...queue.Place) (items []*queue.Item) {
	for _, g := range g.Tree() {
		for uid := range g.Members {
			if item := gs.pendingItem(uid); item != nil && slices.Contains(places, item.Place()) {
				items = append(items, item)
			}
		}
	}
	slices.SortFunc(items, earlier)
	return items
}

func earlier(a, b *queue.Item) int {
	if a.Earlier(b) {
		return -1
	}
	return 1
}

// writeScheduled writes the condition of a scheduled group, which has minCount bound pods.
func (gs *podGroups) writeScheduled(g *groups.Group) {
	gs.writeCondition(g, metav1.ConditionTrue, "Scheduled", "")
}

// writeCondition writes the condition PodGroupInitiallyScheduled if it has changed since the last
// write. The API may not show that write yet.
func (gs *podGroups) writeCondition(g *groups.Group, status metav1.ConditionStatus, reason, message string) {
	if g.Object == nil {
		return
	}
	condition := metav1.Condition{
		Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: status, Reason: reason, Message: message,
		ObservedGeneration: g.Object.Generation, LastTransitionTime: metav1.NewTime(gs.wallTime()),
	}

	text := func(c *metav1.Condition) string { return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message) }
	last := g.LastCondition
	if old := g.Condition(); old != nil {
		if old.Status == status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		last = cmp.Or(last, text(old))
	}

	if g.LastCondition = text(&condition); g.LastCondition != last {
		gs.addAction(WriteGroup{Group: g.Object, Condition: condition})
	}
}

// WriteGroup writes the condition PodGroupInitiallyScheduled of a PodGroup.
type WriteGroup struct {
	Group     *groups.PodGroup
	Condition metav1.Condition
}

func (a WriteGroup) String() string {
	return fmt.Sprintf("write group %s/%s, %s=%s %s: %s", a.Group.Namespace, a.Group.Name, a.Condition.Type, a.Condition.Status,
		a.Condition.Reason, a.Condition.Message)
}

// describeGroup describes the state of a group.
func (gs *podGroups) describeGroup(g *groups.Group) *decision.Group {
	d := &decision.Group{
		Name: g.Name.Name, Missing: g.Object == nil, MinCount: g.MinCount(), Members: g.Count(), Scheduled: gs.progress.isStarted(g),
	}
	d.Placed, d.Bound = gs.progress.countPlaced(g)
	if d.Scheduled {
		return d
	}
	if condition := g.Condition(); condition != nil {
		d.Message = condition.Message
	}
	if g.Last.Tried > 0 {
		d.Tried, d.Fit, d.Needed, d.Message = g.Last.Tried, g.Last.Fit, g.Last.Needed, g.Last.Message
	}
	return d
}

// couldPreempt reports whether a waiting pod could preempt another pod, with group priorities
// enabled. It considers only the two pods and their groups. gentle is set if the profile spares the
// pods of more important groups.
func (gs *podGroups) couldPreempt(item *queue.Item, victim *cluster.Pod, gentle bool) bool {
	priority, own := item.Class.Priority, gs.groupOf(item)
	if own != nil && own.Object != nil {
		priority = own.Priority()
	}
	lower := victim.Class.Priority < priority
	if victim.Class.Spec.SchedulingGroup == nil {
		return lower
	}

	switch g := gs.groups.GroupOf(victim.UID); {
	case g == nil: // the group was deleted, so its effect is unknown
		return false
	case g.Object == nil:
		return lower
	case g.Whole():
		return g.Priority() < priority && (lower || own != nil)
	case gentle:
		return lower && g.Priority() < priority
	}
	return lower
}

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
	together := decidedTogether(g)
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
	t.rewindAll()
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
			of.unhelped = of.words().wordsOf(outcomeOf(of.attempt, nil))
		}
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
