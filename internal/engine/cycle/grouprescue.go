package cycle

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/gang"
)

// memberRescue is what PostFilter plugins did for a member of a group that found no node.
type memberRescue struct {
	node     string // the node that a plugin nominated
	messages []string
	final    bool // no other plugin is to be asked
}

// findRoom looks for room for a group that does not fit: it asks the PostFilter plugins about the
// members, in the order of the profile, and where the profile preempts, plans that for the whole
// group. Where groups have a priority of their own, that comes last, as in upstream, whose
// DefaultPreemption is not for their pods then. promised is set if plugins made room for as many
// members as are needed.
func (a *groupAttempt) findRoom() (promised map[*member]string, plan *gang.RoomPlan) {
	a.attempt.Begin()
	by := a.profile.rescue
	preempter := slices.IndexFunc(by, func(r rescuer) bool { return r.preempts })
	if preempter < 0 {
		return a.rescueMembers(by), nil
	}

	before, after := by[:preempter], by[preempter+1:]
	if a.podGroups.gates.Preemption {
		before, after = slices.Concat(before, after), nil
	}

	if promised = a.rescueMembers(before); promised != nil {
		return promised, nil
	}
	if plan = a.planRoomOfRest(); plan == nil {
		promised = a.rescueMembers(after)
	}

	return promised, plan
}

// rescueMembers asks plugins about every member that finds no node while those that do are counted
// there. With a topology key, all of that is in the domain that the group came closest to fit in.
// If enough members have a node then, or were nominated to one, it returns these nodes.
func (a *groupAttempt) rescueMembers(by []rescuer) (promised map[*member]string) {
	if !slices.ContainsFunc(a.members, hasClaims) {
		by = otherThanForClaims(by)
	}
	if len(by) == 0 || len(a.members) < a.attempt.Need {
		return nil
	}

	a.suspendNominations()
	defer a.resumeNominations()
	defer a.attempt.Rewind()
	if a.attempt.PlaceInClosest() != nil {
		return nil
	}

	a.news.rescuing = true
	defer func() { a.news.rescuing = false }()
	promised = map[*member]string{}
	helped := false
	for _, m := range a.members {
		if m.Node == "" {
			a.rescueMember(m, by)
		}
		if node := cmp.Or(m.Node, m.rescue.node); a.cluster.Node(node) != nil {
			promised[m] = node
		}
		helped = helped || m.rescue.node != ""
	}

	if !helped || len(promised) < a.attempt.Need {
		return nil
	}
	return promised
}

// rescueMember asks plugins about one member. A plugin for device claims is not asked about a pod
// that has none.
func (a *groupAttempt) rescueMember(m *member, by []rescuer) {
	if m.rescue.final || m.asked.Failure == nil || m.asked.Failure.Nodes == 0 {
		return
	}
	if hasClaims(m) {
		a.profile.Diagnose(m.Waiting) // the plugin goes by what it said of the nodes last
	} else {
		by = otherThanForClaims(by)
	}
	if a.attempt.InDomains() {
		by = confinedRescuers(m, by)
	}
	node, messages, rejectors, final := a.runPostFilters(m.placement, by)
	if node != nil && a.attempt.IsInClosest(a.cluster.Node(*node)) {
		m.rescue.node = *node
	}
	m.rescue.messages, m.rescue.final = append(m.rescue.messages, messages...), final
	m.asked.Rejectors = append(m.asked.Rejectors, rejectors...)
}

// confinedRescuers have plugins see the member as it is confined to a domain. One for device claims
// goes by all nodes: a claim is not given up because another domain is the closest.
func confinedRescuers(m *member, by []rescuer) []rescuer {
	by = slices.Clone(by)
	for i := range by {
		if ask := by[i].ask; !by[i].forClaims {
			by[i].ask = func(as *attempts, b *placement) Rescue {
				was := b.Waiting
				b.Waiting = m.asked.Asked
				defer func() { b.Waiting = was }()
				return ask(as, b)
			}
		}
	}
	return by
}

func hasClaims(m *member) bool { return len(m.item.Class.Spec.ResourceClaims) > 0 }

func otherThanForClaims(by []rescuer) []rescuer {
	return slices.DeleteFunc(slices.Clone(by), func(r rescuer) bool { return r.forClaims })
}

// planRoom plans which pods leave for the members of an attempt.
func (a *groupAttempt) planRoom(attempt *gang.Attempt) *gang.RoomPlan {
	if !attempt.MayPreempt() {
		return nil
	}
	a.preemptions.forgetCounted()
	return attempt.PlanRoom()
}

// planRoomOfRest plans that for all members but those about which a plugin has said that no other
// one is to be asked. Where groups have a priority of their own, upstream preempts for the whole
// group whatever such a plugin says.
func (a *groupAttempt) planRoomOfRest() *gang.RoomPlan {
	if a.podGroups.gates.Preemption {
		return a.planRoom(a.attempt)
	}
	rest := a.attempt.Without(func(m *gang.Member) bool { return a.byAsked[m].rescue.final })
	plan := a.planRoom(rest)
	a.attempt.AdoptBound(rest)
	return plan
}
