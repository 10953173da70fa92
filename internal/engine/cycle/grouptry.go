package cycle

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
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
	slices.SortFunc(items, func(a, b *queue.Item) int {
		return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), earlier(a, b))
	})
	if incomplete != "" {
		t := &decision.GroupTrial{Incomplete: true, Message: incomplete}
		for _, item := range items {
			t.Pods = append(t.Pods, decision.GroupPlace{Name: item.Pod.Name, Message: incomplete})
		}
		return t
	}

	a, foreign := c.attempts.newGroup(g, items)
	if foreign != nil {
		return &decision.GroupTrial{Tried: len(a.members), Needed: a.need, Message: foreign.Error()}
	}
	return a.trial()
}

// trial decides the members, and takes all of it back.
func (a *groupAttempt) trial() *decision.GroupTrial {
	a.lift()
	err := a.decide()
	t := &decision.GroupTrial{Tried: len(a.members), Fit: a.fit(), Needed: a.need}
	nodes := map[*member]string{}
	note := func(places []place) {
		for _, p := range places {
			nodes[p.member] = p.found.Node.Name
		}
	}
	fits := len(a.placed) >= a.need
	if err == nil && fits {
		note(a.plan(nil).places)
		t.Fit = len(a.placed)
	}
	a.undo(0)
	a.putBack()
	switch {
	case err != nil:
		t.Fit, t.Message = 0, err.Error()
	case !fits:
		t.Message = a.reason()
		if plan := a.planRoom(); plan != nil {
			note(plan.places)
			if !plan.waits { // it fits as things are, in another way
				t.Fit, t.Message = len(plan.places), ""
			}
			for _, unit := range plan.victims {
				for _, victim := range unit {
					t.Victims = append(t.Victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})
				}
			}
		}
	}
	for _, m := range a.members {
		p := decision.GroupPlace{Name: m.Pod.Name, Node: nodes[m]}
		if p.Node == "" && m.failure != nil && m.failure != unreached {
			p.Message = m.failure.Message("")
		} else if p.Node == "" {
			p.Message = a.why(m).message
		}
		t.Pods = append(t.Pods, p)
	}
	return t
}

// newGroup returns an attempt for pending members, given in the order in which they are decided.
// foreign is set if they are not all of one profile.
func (as *attempts) newGroup(g *groups.Group, items []*queue.Item) (a *groupAttempt, foreign error) {
	first := items[0].Pod.Spec.SchedulerName
	a = &groupAttempt{attempts: as, group: g, profile: as.profiles.byName[first], need: as.podGroups.missing(g)}
	for _, item := range items {
		p := as.profiles.byName[item.Pod.Spec.SchedulerName]
		if p != a.profile && foreign == nil {
			foreign = errSeveralSchedulers(first, item.Pod.Spec.SchedulerName)
		}
		m := &member{placement: as.newPlacement(p, item)}
		m.sibling, m.asked = true, as.nominations.contender(m.Waiting, item.Pod)
		a.members = append(a.members, m)
	}
	return a, foreign
}
