package cycle

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// TryGroup returns how an attempt for the pending pods of a group would end now. It leaves
// everything as it is. It returns nil if there is no such group, or none of its pods is pending.
func (c *Core) TryGroup(name cluster.Name) *decision.GroupTrial {
	g := c.groups.Get(name)
	if g == nil {
		return nil
	}

	var items []*queue.Item
	incomplete := ""
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

	if len(items) == 0 {
		return nil
	}
	slices.SortFunc(items, compareMembers)
	if incomplete != "" {
		t := &decision.GroupTrial{Incomplete: true, Message: incomplete}
		for _, item := range items {
			t.Pods = append(t.Pods, decision.GroupPlace{Name: item.Pod.Name, Message: incomplete})
		}
		return t
	}

	a, discord := c.attempts.newGroup(g, items)
	if discord != nil {
		return &decision.GroupTrial{Tried: len(a.members), Needed: a.attempt.Need, Message: discord.Error()}
	}
	return a.preview()
}

// preview decides the members, and takes all of it back.
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
			a.describePlan(t, plan)
			a.noteNodes(nodes, plan.Places)
		} else if a.profile.GroupPreemption {
			a.unhelped = a.wordsOf(a.outcomeOf(nil))
		}
	}
	for _, m := range a.members {
		t.Pods = append(t.Pods, a.describePlace(m, nodes[m]))
	}
	return t
}

// noteNodes notes where members would go.
func (a *groupAttempt) noteNodes(nodes map[*member]string, places []gang.Place) {
	for _, p := range places {
		nodes[a.byAsked[p.Member]] = p.Decision.Node.Name
	}
}

// describePlan has a trial say which pods would leave, or that the group fits as things are, in
// another way.
func (a *groupAttempt) describePlan(t *decision.GroupTrial, plan *gang.RoomPlan) {
	if !plan.Waits {
		t.Fit, t.Message = len(plan.Places), ""
	}
	for _, unit := range plan.Victims {
		for _, victim := range unit {
			t.Victims = append(t.Victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})
		}
	}
}

// describePlace says where a member would go, or why it goes nowhere.
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
