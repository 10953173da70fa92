package cycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// groupAttempt decides the pods of a group together. While it tries, members are counted on nodes
// in the cluster itself, so that each decision sees those before it; nothing of that is told,
// written or reserved outside, and undo takes all of it back.
type groupAttempt struct {
	*attempts
	group   *groups.Group
	profile *profile
	members []*member      // priority, then age: upstream's order
	need    int            // members that must be placed, or none is
	placed  []*member      // counted on nodes now, in the order in which they came
	lifted  []*cluster.Pod // nominations of members taken away meanwhile

	searched int  // judgements of nodes by the search
	gaveUp   bool // the search ended at its limit
	domains  int  // of the topology key
	fills    map[string]fill
	rest     bool // the group has what it asks for without these members
}

// member is a pod of a group that is being decided.
type member struct {
	*placement
	asked   *cluster.Pod    // what decisions are asked about: waiting, perhaps confined to a domain
	found   decide.Decision // where it was counted last
	failure *decide.Failure // why it could not be, in the first pass; nil if it could
	refused error           // by one of Berth's own plugins at Reserve
	nominee *cluster.Pod    // its nomination, while it is counted on a node
}

// waitingForQuorum is what upstream says of members that would fit.
const waitingForQuorum = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, " +
	"one or more plugins asked to wait and no plugin rejected pod"

// errSeveralSchedulers is upstream's word.
func errSeveralSchedulers(one, another string) error {
	return fmt.Errorf("all pods in a single pod group should have the same .spec.schedulerName set, got: %q and %q", one, another)
}

// scheduleGroup decides the pods of a group that wait, of which one was popped.
func (as *attempts) scheduleGroup(g *groups.Group, popped *queue.Item) {
	items := []*queue.Item{popped}
	for uid := range g.Members {
		if item := as.queue.Take(uid); item != nil {
			items = append(items, item)
		}
	}
	if g.Object == nil { // it was deleted while they were due: its gate keeps them out
		for _, item := range items {
			as.queue.Failed(item, as.now)
		}
		return
	}
	slices.SortFunc(items, func(a, b *queue.Item) int {
		return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), earlier(a, b))
	})
	a, foreign := as.newGroup(g, items)
	defer a.recovered()
	if foreign != nil {
		a.failAll(foreign)
		as.observer().AttemptedGroup(popped.Pod.Spec.SchedulerName, Errored, 0)
		return
	}
	for _, m := range a.members {
		for _, e := range a.profile.begin {
			e.Begin(&m.Attempt)
		}
	}
	began := as.clock()
	result := a.settle()
	as.observer().AttemptedGroup(popped.Pod.Spec.SchedulerName, result, as.clock().Sub(began))
}

// settle decides the members, and goes on with them or puts them back.
func (a *groupAttempt) settle() Result {
	began := a.clock()
	a.lift()
	err := a.decide()
	var plan *roomPlan
	if placed := len(a.placed); err != nil || placed < a.need {
		a.undo(0)
		a.putBack()
		if err == nil {
			plan = a.planRoom()
		}
	}
	took := a.clock().Sub(began)
	a.observer().Decided(took)
	a.observer().DecidedGroup(took)
	switch {
	case err != nil:
		a.failAll(err)
		return Errored
	case len(a.placed) >= a.need:
		a.commit()
		return Scheduled
	case plan != nil && plan.waits:
		a.makeGroupRoom(plan)
		return WaitingOnPreemption
	}
	a.rejectAll()
	return Unschedulable
}

// decide looks for nodes, and leaves the members that have one counted there.
func (a *groupAttempt) decide() error {
	if len(a.members) < a.need {
		return nil // others are kept out by gates of their own
	}
	if key := a.group.TopologyKey(); key != "" && a.podGroups.gates.Topology {
		return a.placeInDomain(key)
	}
	return a.place()
}

// commit goes on with the members that are placed, each on its own, and rejects the others. If so
// many are refused by plugins from outside that the group is incomplete, all are given up.
func (a *groupAttempt) commit() {
	placed := a.placed
	a.group.Last = groups.Attempt{}
	a.letGo()
	for _, m := range placed {
		a.decisions.place(m.placement, m.Node, m.found.Total, m.found.Feasible)
		a.placements.byPod[m.Pod.UID] = m.placement
		a.news.came(m.Waiting, nil)
		if was := m.nominee; was != nil && was.Nominated != m.Node {
			a.news.left(was, a.cluster.Node(was.Nominated), nil)
		}
	}
	waits, err := a.askOutside(placed)
	if len(waits) < a.need && err != nil {
		reason := v1.PodReasonSchedulerError
		if refused := (*rejection)(nil); errors.As(err, &refused) {
			reason = v1.PodReasonUnschedulable
		}
		a.writeUnscheduled(reason, err.Error())
		for _, m := range placed {
			if _, in := waits[m]; in {
				a.placements.takeBack(m.placement, errGroupBroken)
			}
		}
	} else {
		for _, m := range placed {
			if wait, in := waits[m]; in {
				m.sibling = false
				a.placements.prepare(m.placement, wait)
			}
		}
	}
	if left := slices.DeleteFunc(slices.Clone(a.members), func(m *member) bool { return m.Node != "" }); a.podGroups.gates.Preemption {
		a.makeRoomForRest(left)
	} else {
		for _, m := range left {
			a.leaveOut(m)
		}
	}
}

// makeRoomForRest makes room for members that found no place while their group did: with the
// priority of the group, as for a group that asks for one pod.
func (a *groupAttempt) makeRoomForRest(left []*member) {
	rest := &groupAttempt{attempts: a.attempts, group: a.group, profile: a.profile, need: 1, domains: a.domains, rest: true}
	for _, m := range left {
		m.sibling = false
		if m.refused != nil {
			m.end(false)
			a.fail(m.placement, m.refused)
			continue
		}
		rest.members = append(rest.members, m)
	}
	if len(rest.members) == 0 {
		return
	}
	if plan := rest.planRoom(); plan != nil && plan.waits {
		rest.makeGroupRoom(plan)
		return
	}
	rest.rejectAll()
}

// askOutside asks out-of-tree plugins at Reserve and Permit about all, takes back those that they
// refuse, and returns what was said of the first of these.
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

// leaveOut rejects a member that found no place while its group did: it may make room for itself
// like any pod.
func (a *groupAttempt) leaveOut(m *member) {
	m.sibling = false
	if m.refused != nil {
		m.end(false)
		a.fail(m.placement, m.refused)
		return
	}
	if found := a.profile.Decide(m.Waiting); found.Node != nil || found.Err != nil || a.domains > 0 {
		m.end(false) // confined to a domain, or it depends on what only now is there
		a.reject(m.placement, a.why(m), new(string))
		return
	}
	a.unplaced(m.placement)
}

// rejectAll puts all members where they wait. The group is woken by what can help any of them.
func (a *groupAttempt) rejectAll() {
	nodes := a.reserve()
	for _, m := range a.members {
		m.end(false)
		node := nodes[m.Pod.UID]
		a.reject(m.placement, a.why(m), &node)
	}
	message := a.reason()
	if len(nodes) > 0 {
		message += a.reserved.words()
	}
	a.writeUnscheduled(v1.PodReasonUnschedulable, message)
}

// why is what is said of a rejected member.
func (a *groupAttempt) why(m *member) *why {
	if m.failure == nil {
		return &why{message: waitingForQuorum, plugins: []string{groups.GangScheduling}}
	}
	rejectors := slices.Clone(m.failure.Plugins)
	if m.failure.Rejector != "" {
		rejectors = append(rejectors, m.failure.Rejector)
	}
	if a.domains > 0 { // another domain may become the best one
		rejectors = nil
	}
	return &why{m.failure.Message(""), rejectors, m.failure.Pending, m.failure.Reasons}
}

// failAll puts all members back: something went wrong, if only with one of them.
func (a *groupAttempt) failAll(err error) {
	a.reserved.over(a.group)
	for _, m := range a.members {
		own := err
		if m.refused != nil {
			own = m.refused
		}
		m.end(false)
		a.fail(m.placement, own)
	}
	a.writeUnscheduled(v1.PodReasonSchedulerError, err.Error())
}

// recovered ends the attempt of a group whose decision panicked, deferred by scheduleGroup.
func (a *groupAttempt) recovered() {
	value := recover()
	if value == nil {
		return
	}
	for _, m := range a.members {
		if a.placements.byPod[m.Pod.UID] != m.placement {
			a.cluster.RemovePod(m.Pod.UID)
		}
	}
	a.putBack()
	a.panicked(a.members[0].placement, value)
	fault := &Fault{Message: fmt.Sprintf("internal error while the pod group was decided: %v", value)}
	for _, m := range a.members {
		switch {
		case a.placements.byPod[m.Pod.UID] == m.placement && m.stage == reserving:
			a.placements.takeBack(m.placement, fault)
		case a.placements.byPod[m.Pod.UID] == nil && m.item.Place() == queue.Taken:
			a.placements.giveBack(m.placement)
			m.end(false)
			a.fail(m.placement, fault)
		}
	}
}

// count tries a member on a node: what it takes there is counted and reserved.
func (a *groupAttempt) count(m *member, found decide.Decision) error {
	n := found.Node
	m.Node, m.found = n.Name, found
	if err := a.placements.reserveOwn(m.placement, n); err != nil {
		a.free(m)
		return err
	}
	m.nominee = a.cluster.Nominated(m.Pod.UID)
	a.cluster.Place(m.Waiting, n)
	a.placed = append(a.placed, m)
	return nil
}

// free gives back what was reserved for a member that is counted nowhere.
func (a *groupAttempt) free(m *member) {
	a.placements.giveBack(m.placement)
	m.own, m.volumes, m.devices = nil, plugins.PodVolumes{}, deviceWork{}
	m.Node, m.Waiting.NodeName = "", ""
}

// undo takes back all but the first so many.
func (a *groupAttempt) undo(keep int) {
	for len(a.placed) > keep {
		last := len(a.placed) - 1
		m := a.placed[last]
		a.placed = a.placed[:last]
		a.cluster.RemovePod(m.Pod.UID)
		a.free(m)
		if m.nominee != nil {
			a.cluster.Nominate(m.nominee, m.nominee.Nominated)
			m.nominee = nil
		}
	}
}

// try decides a member and counts it where it goes. It returns false where there is no place for
// it.
func (a *groupAttempt) try(m *member) (bool, error) {
	found := a.profile.Decide(m.asked)
	if found.Err != nil {
		m.refused = found.Err
		return false, found.Err
	}
	if found.Node == nil {
		return false, nil
	}
	if err := a.count(m, found); err != nil {
		if refused := (*rejection)(nil); errors.As(err, &refused) {
			return false, nil
		}
		m.refused = err
		return false, err
	}
	return true, nil
}

// waits are what plugins at Permit have a pod wait for.
type waits = map[string]time.Duration
