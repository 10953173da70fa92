package cycle

import (
	"cmp"
	"slices"
)

// memberRescue is what PostFilter plugins did for a member of a group that found no node.
type memberRescue struct {
	node                string // the node that a plugin nominated
	messages, rejectors []string
	final               bool // no other plugin is to be asked
}

// findRoom looks for room for a group that does not fit: it asks the PostFilter plugins about the
// members, in the order of the profile, and where the profile preempts, plans that for the whole
// group. Where groups have a priority of their own, that comes last, as in upstream, whose
// DefaultPreemption is not for their pods then. promised is set if plugins made room for as many
// members as are needed.
func (a *groupAttempt) findRoom() (promised map[*member]string, plan *roomPlan) {
	a.begin()
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
	rest := a.withoutFinal()
	plan = rest.planRoom()
	if a.cut, a.shortened = rest.cut, rest.shortened; plan == nil {
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
	if len(by) == 0 || len(a.members) < a.need {
		return nil
	}

	if a.domains > 0 {
		said := a.failures()
		a.confine(a.group.TopologyKey(), a.closest)
		a.sayAgain(said)
	}

	a.lift()
	defer a.putBack()
	defer a.undo(0)
	if a.pass(a.members, false) != nil {
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

	if !helped || len(promised) < a.need {
		return nil
	}
	return promised
}

// rescueMember asks plugins about one member. A plugin for device claims is not asked about a pod
// that has none.
func (a *groupAttempt) rescueMember(m *member, by []rescuer) {
	if m.rescue.final || m.failure == nil || m.failure.Nodes == 0 {
		return
	}
	if hasClaims(m) {
		a.profile.Diagnose(m.Waiting) // the plugin goes by what it said of the nodes last
	} else {
		by = otherThanForClaims(by)
	}
	if a.domains > 0 {
		by = confinedRescuers(m, by)
	}
	node, messages, rejectors, final := a.rescue(m.placement, by)
	if node != nil && a.isInClosest(*node) {
		m.rescue.node = *node
	}
	m.rescue.messages, m.rescue.rejectors = append(m.rescue.messages, messages...), append(m.rescue.rejectors, rejectors...)
	m.rescue.final = final
}

// confinedRescuers have plugins see the member as it is confined to a domain. One for device claims
// goes by all nodes: a claim is not given up because another domain is the closest.
func confinedRescuers(m *member, by []rescuer) []rescuer {
	by = slices.Clone(by)
	for i := range by {
		if ask := by[i].ask; !by[i].forClaims {
			by[i].ask = func(as *attempts, b *placement) Rescue {
				was := b.Waiting
				b.Waiting = m.asked
				defer func() { b.Waiting = was }()
				return ask(as, b)
			}
		}
	}
	return by
}

// isInClosest tells whether a member may go to a node: with a topology key, it must be in the
// domain where the others are.
func (a *groupAttempt) isInClosest(node string) bool {
	n := a.cluster.Node(node)
	if a.domains == 0 || n == nil {
		return true
	}
	domain, has := labelOf(n, a.group.TopologyKey())
	return has && domain == a.closest
}

func hasClaims(m *member) bool { return len(m.item.Class.Spec.ResourceClaims) > 0 }

func otherThanForClaims(by []rescuer) []rescuer {
	return slices.DeleteFunc(slices.Clone(by), func(r rescuer) bool { return r.forClaims })
}

// withoutFinal is the attempt without the members about which a plugin has said that no other one
// is to be asked. Where groups have a priority of their own, upstream preempts for the whole group
// whatever such a plugin says.
func (a *groupAttempt) withoutFinal() *groupAttempt {
	if a.podGroups.gates.Preemption {
		return a
	}
	rest := *a
	rest.members = slices.DeleteFunc(slices.Clone(a.members), func(m *member) bool { return m.rescue.final })
	return &rest
}
