package cycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// What becomes of a group once it was decided: its members are placed, wait for room that is being
// made, or return to the queue.

const notReachedMessage = "the attempt for the pod group took too long and ended before this pod was looked at; it is " +
	"tried again after its back-off"

var errNotReached = &Fault{Message: notReachedMessage, Verdict: true}

// startPlacements starts the placement of each member that has a node, and rejects the others. If
// out-of-tree plugins refuse so many that fewer are left than the group needs, all are given up.
func (a *groupAttempt) startPlacements() {
	var placed []*member
	for _, m := range a.attempt.Placed() {
		placed = append(placed, a.byAsked[m])
	}
	a.group.Last, a.group.Shortened, a.group.Reached = groups.Attempt{}, 0, nil
	a.releaseRoom()
	for _, m := range placed {
		a.decisions.rememberPlaced(m.placement, m.Node, m.asked.Found.Total, m.asked.Found.Feasible)
		a.placements.enter(m.placement)
		a.news.podAdded(m.Waiting, nil)
		if was := m.asked.Nominee; was != nil && was.Nominated != m.Node {
			a.news.podRemoved(was, a.cluster.Node(was.Nominated), nil)
		}
	}

	left := slices.DeleteFunc(slices.Clone(a.members), func(m *member) bool { return m.Node != "" })
	waits, err := a.askOutside(placed)
	if len(waits) < a.attempt.Need && err != nil {
		a.giveUp(placed, left, waits, err)
		return
	}

	for _, m := range placed {
		if wait, in := waits[m]; in {
			m.sibling = false
			a.placements.startPreparation(m.placement, wait)
		}
	}

	if a.podGroups.gates.Preemption {
		a.makeRoomForRest(left)
		return
	}

	a.attempt.BeginAfterPlacing()
	for _, m := range left {
		a.leaveOut(m)
	}
}

// giveUp takes back the members that plugins have let through, where these are too few, and rejects
// those that found no node: nobody has to leave for them.
func (a *groupAttempt) giveUp(placed, left []*member, through map[*member]waits, why error) {
	reason := v1.PodReasonSchedulerError
	if refused := (*rejection)(nil); errors.As(why, &refused) {
		reason = v1.PodReasonUnschedulable
	}
	a.writeUnscheduled(reason, why.Error())
	for _, m := range placed {
		if _, in := through[m]; in {
			a.placements.takeBack(m.placement, errGroupBroken)
		}
	}
	for _, m := range left {
		m.sibling = false
		m.endAttempt(false)
		a.requeueUnschedulable(m.placement, a.why(m), new(string))
	}
}

// makeRoomForRest makes room for members that found no node although their group was placed: with
// the priority of the group, as for a group that needs one pod.
func (a *groupAttempt) makeRoomForRest(left []*member) {
	rest := &groupAttempt{attempts: a.attempts, group: a.group, profile: a.profile, byAsked: a.byAsked, rest: true}
	var asked []*gang.Member
	for _, m := range left {
		m.sibling = false
		if m.asked.Err != nil {
			m.endAttempt(false)
			a.requeueFailed(m.placement, m.asked.Err)
			continue
		}
		if !m.asked.Reached() {
			m.endAttempt(false)
			a.requeueFailed(m.placement, errNotReached)
			continue
		}
		rest.members, asked = append(rest.members, m), append(asked, m.asked)
	}

	if len(rest.members) == 0 {
		return
	}
	rest.attempt = a.attempt.ForRest(asked)
	switch promised, plan := rest.findRoom(); {
	case promised != nil:
		rest.awaitRoom(promised)
	case plan != nil && plan.Waits:
		rest.makeGroupRoom(plan)
	default:
		rest.rejectAll()
	}
}

// askOutside runs the out-of-tree Reserve and Permit plugins for all members that have a node, and
// takes back those that are refused. It returns the waits of the others, and why the first one was
// refused.
func (a *groupAttempt) askOutside(placed []*member) (all map[*member]waits, first error) {
	all = map[*member]waits{}
	for _, m := range placed {
		err := a.placements.reserveOutside(m.placement)
		var wait waits
		if err == nil {
			wait, err = a.placements.askPermit(m.placement)
		}
		if err != nil {
			a.placements.takeBack(m.placement, err)
			first = cmp.Or(first, fmt.Errorf("%s: %w", podName(m.Pod), err))
			continue
		}
		all[m] = wait
	}
	return all, first
}

// leaveOut rejects a member that found no node although its group was placed. It may preempt for
// itself like any pod.
func (a *groupAttempt) leaveOut(m *member) {
	m.sibling = false
	if m.asked.Err != nil {
		m.endAttempt(false)
		a.requeueFailed(m.placement, m.asked.Err)
		return
	}
	if !m.asked.Reached() || a.attempt.IsOver() {
		m.endAttempt(false)
		a.requeueFailed(m.placement, errNotReached)
		return
	}
	if !a.attempt.InDomains() && a.knownToFail(m.placement) {
		m.endAttempt(false)
		a.requeueUnschedulable(m.placement, a.profile.failed.why, nil)
		return
	}
	if a.attempt.InDomains() { // it is confined to one
		m.endAttempt(false)
		a.requeueUnschedulable(m.placement, a.why(m), new(string))
		return
	}
	if found := a.profile.Decide(m.Waiting); found.Node != nil || found.Err != nil { // it fits only now that the others are placed
		m.endAttempt(false)
		a.requeueUnschedulable(m.placement, a.why(m), new(string))
		return
	}
	a.handleNoFit(m.placement)
}

// rejectAll returns all members to the queue to wait. An event that can help any of them wakes the
// group. If domains were left out, or the bound was reached, it is tried again after its back-off.
func (a *groupAttempt) rejectAll() {
	a.noteRejectors()
	nodes := a.reserveRoom()
	verdict, next := a.attempt.Conclude()
	a.group.Shortened, a.group.Reached = next.Shortened, next.Reached
	message := verdict.Reason()
	for _, m := range a.members {
		m.endAttempt(false)
		if verdict.IsTriedAgain() && len(nodes) == 0 {
			a.preemptions.noteUnschedulable(m.item)
			a.requeueFailed(m.placement, &Fault{Message: a.why(m).message, Verdict: true}) // it need not wait for an event
			continue
		}
		node := nodes[m.Pod.UID]
		a.requeueUnschedulable(m.placement, a.why(m), &node)
	}
	if len(nodes) > 0 {
		message += a.reserved.words()
	}
	a.writeUnscheduled(v1.PodReasonUnschedulable, message)
}

// why returns why a member is rejected.
func (a *groupAttempt) why(m *member) *why {
	if m.asked.Failure == nil {
		return &why{message: waitingForQuorum, plugins: gang.WithNames([]string{groups.GangScheduling}, a.rejectors)}
	}
	if !m.asked.Reached() {
		return &why{message: notReachedMessage}
	}
	rejectors := gang.WithNames(m.asked.RejectedBy(), a.rejectors)
	if a.attempt.InDomains() { // another domain may become the best one
		rejectors = nil
	}
	return &why{m.asked.Failure.Message(strings.Join(m.rescue.messages, ", ")), rejectors, m.asked.Failure.Pending, m.asked.Failure.Reasons}
}

// noteRejectors notes what has rejected members that differ: where one of them fits now, another
// one may find its place free, so what helps any of them may help all.
func (a *groupAttempt) noteRejectors() {
	if !a.attempt.OrderMatters() {
		return
	}
	for _, m := range a.members {
		if m.asked.Reached() {
			a.rejectors = gang.WithNames(a.rejectors, m.asked.RejectedBy())
		}
	}
}

// failAll returns all members to the queue after an error, even if it is that of one member.
func (a *groupAttempt) failAll(err error) {
	a.reserved.endFor(a.group)
	for _, m := range a.members {
		own := err
		if m.asked.Err != nil {
			own = m.asked.Err
		}
		m.endAttempt(false)
		a.requeueFailed(m.placement, own)
	}
	a.writeUnscheduled(v1.PodReasonSchedulerError, err.Error())
}

// makeGroupRoom evicts the victims of a plan, and keeps the room for the members by nominating each
// to its node. The group is not tried again before all removals were answered.
func (a *groupAttempt) makeGroupRoom(plan *gang.RoomPlan) {
	g := a.group
	a.reserved.endFor(g)
	all := &round{began: a.now}
	nodes := map[*member]string{}
	for _, p := range plan.Places {
		nodes[a.byAsked[p.Member]] = p.Decision.Node.Name
		if plan.Beside {
			continue
		}
		for _, waiting := range slices.Clone(p.Decision.Node.Nominated) {
			if waiting.Class.Priority < a.attempt.LowestPriority() && a.groups.Of(waiting.UID) != g {
				a.nominations.moveOn(waiting)
			}
		}
	}

	count := 0
	var names []decision.Name
	for _, unit := range plan.Victims {
		for _, victim := range unit {
			count++
			names = append(names, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})
			if victim.Node == nil || victim.Terminating {
				continue
			}
			a.preemptions.evictVictim(victim, &removal{
				victim: v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: victim.Namespace(),
					Name: victim.Name, UID: victim.UID},
				generation: victim.Generation,
				by:         a.members[0].Profile, pod: g.Object.UID,
				message: fmt.Sprintf("Preempted by podgroup %v on node cluster", g.Object.UID), round: all,
			})
		}
	}

	a.observer().Preempted(count)
	for _, m := range a.members {
		m.victims = names
	}
	a.awaitRoom(nodes)
}

// awaitRoom returns the members to the queue until there is room for them on these nodes.
func (a *groupAttempt) awaitRoom(nodes map[*member]string) {
	a.noteRejectors()
	for _, m := range a.members {
		m.endAttempt(false)
		w := a.why(m)
		if m.asked.Failure == nil || !m.asked.Reached() {
			w.message = waitingForVictims
		}
		node := nodes[m]
		a.requeueUnschedulable(m.placement, w, &node)
	}
	a.writeUnscheduled(v1.PodReasonUnschedulable, waitingForVictims)
}

// waitingForVictims is upstream's message for a group for which room is being made.
const waitingForVictims = "pod group is waiting for preemption to complete"
