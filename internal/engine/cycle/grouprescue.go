package cycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// groupRescuer is a plugin at PodGroupPostFilter, of Berth or out-of-tree. The pods of a group are
// not asked about at PostFilter.
type groupRescuer struct {
	plugin string
	ask    func(a *groupAttempt) groupRescue
}

// groupRescue is what a plugin did for a group that does not fit.
type groupRescue struct {
	nodes   map[*member]string // where members are nominated; nil: nowhere
	plan    *gang.RoomPlan     // DefaultPreemption's; nil if it does not help
	message string
	// final: no further plugin is asked, because this one helped or because none can.
	final bool
	// err: the plugin failed, and with it the attempt.
	err error
}

// findRoom asks the plugins at PodGroupPostFilter about a group that does not fit, in the order of
// the profile. What they say is joined, but for the one that is final.
func (a *groupAttempt) findRoom() (found groupRescue) {
	if len(a.members) < a.attempt.Need {
		return found
	}

	a.attempt.Begin()
	var messages []string
	for _, by := range a.profile.rescueGroup {
		said := by.ask(a)
		if said.err != nil {
			said.err = fmt.Errorf("error in %q PodGroupPostFilter plugins: %w", by.plugin, said.err)
			return said
		}
		if said.final {
			return said
		}
		if said.message != "" {
			messages = append(messages, said.message)
		}
	}

	found.message = strings.Join(messages, ", ")
	return found
}

// rescueByPlan is DefaultPreemption's part: it plans which pods leave for the group as a whole.
func (a *groupAttempt) rescueByPlan() groupRescue {
	began := a.clock()
	plan := a.planRoom()
	a.observePlan(plan, a.clock().Sub(began))
	return groupRescue{plan: plan, final: plan != nil}
}

// observePlan reports how the search for victims ended.
func (a *groupAttempt) observePlan(plan *gang.RoomPlan, took time.Duration) {
	p := Preempted{Group: true, Outcome: NoHelp, Searched: a.attempt.MayPreempt(), Took: took}
	switch {
	case plan != nil:
		p.Outcome, p.Violations = FoundVictims, a.podGroups.units.CountViolations(plan.Victims)
		for _, unit := range plan.Victims {
			p.Victims += len(unit)
			if g := a.groups.Of(unit[0].UID); g != nil && g.Whole() {
				p.Whole++
			}
		}
	case p.Searched && !a.attempt.HasLower():
		p.Outcome = Unresolvable
	}
	a.observer().Preempted(p)
}

// planRoom plans which pods leave for the members.
func (a *groupAttempt) planRoom() *gang.RoomPlan {
	if !a.attempt.MayPreempt() {
		return nil
	}
	a.preemptions.forgetCounted()
	return a.attempt.PlanRoom()
}

// rescueClaims has a plugin give up devices that members hold and cannot use, while those that find
// a node are counted there. It goes by all nodes, whatever the topology constraint: a claim is not
// given up because another domain is the closest. As upstream, it ends no search for room.
func (a *groupAttempt) rescueClaims(ask func(as *attempts, b *placement) Rescue) (said groupRescue) {
	if !slices.ContainsFunc(a.members, hasClaims) {
		return said
	}

	a.suspendNominations()
	defer a.resumeNominations()
	defer a.attempt.Rewind()
	if a.attempt.PlaceInClosest() != nil {
		return said
	}

	a.news.rescuing = true
	defer func() { a.news.rescuing = false }()
	for _, m := range a.members {
		if m.Node != "" || !hasClaims(m) || m.asked.Failure == nil || m.asked.Failure.Nodes == 0 {
			continue
		}
		a.profile.Diagnose(m.Waiting) // the plugin goes by what it said of the nodes last
		r := ask(a.attempts, m.placement)
		if r.Err != nil {
			return groupRescue{err: r.Err}
		}
		if r.Message != "" {
			m.claims = r.Message
		}
		m.asked.Rejectors = gang.WithNames(m.asked.Rejectors, r.Rejectors)
	}
	return said
}

func hasClaims(m *member) bool { return len(m.item.Class.Spec.ResourceClaims) > 0 }

// waitingFor is upstream's message for a group for which room is being made: how many of its pods
// fit as things are, and what a plugin says.
func (a *groupAttempt) waitingFor(said string) string {
	verdict := a.attempt.Verdict()
	quorum := max(1, a.group.MinCount())
	text := fmt.Sprintf("minCount (%d) cannot be satisfied: %d scheduled, 0 remaining", quorum,
		min(quorum-1, a.attempt.PlacedBefore+verdict.Fit))
	if a.attempt.PlacedBefore >= quorum {
		text = "pod group is unschedulable"
	}
	if said == "" {
		return text
	}
	return text + ", " + said
}

// isPlaced tells whether as many pods of the group as it asks for have a node, bound or not yet.
func (gs *podGroups) isPlaced(g *groups.Group) bool {
	placed, _ := gs.countPlaced(g)
	return placed > 0 && placed >= g.MinCount()
}
