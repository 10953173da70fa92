package cycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// groupAttempt turns what package gang decides about a group into actions: placements, preemptions,
// reservations, conditions. Until startPlacements nothing that gang counts on nodes is reported,
// written, or reserved with out-of-tree plugins.
type groupAttempt struct {
	*attempts
	attempt *gang.Attempt
	group   *groups.Group
	profile *profile
	members []*member // by priority, then age, as upstream
	byAsked map[*gang.Member]*member

	// suspended are members whose nominations are withdrawn while the group is decided: room is
	// reserved for them.
	suspended []*cluster.Pod
	trial     bool          // nothing comes of it: see preview
	evaluated time.Time     // the placement that is evaluated now: since when
	shown     *GroupAttempt // to out-of-tree plugins; nil without any, and once it is over for them
	rejectors []string      // of all members; see noteRejectors
	unhelped  string        // what members that fit say of plugins that did not help the group
	tree      *treeAttempt  // that it is part of; nil if the group is in no tree
}

// member is a pod of a group that is being decided: for the cycle a placement, and for gang asked.
type member struct {
	*placement
	asked  *gang.Member
	claims string // what became of its device claims, for its message
}

// errSeveralSchedulers returns upstream's error for a group whose pods name different schedulers.
func errSeveralSchedulers(one, another string) error {
	return fmt.Errorf("all pods in a single pod group should have the same .spec.schedulerName set, got: %q and %q",
		one, another)
}

// newGroup returns an attempt for pending members, given in the order in which they are decided.
func (as *attempts) newGroup(g *groups.Group, items []*queue.Item, of *treeAttempt) *groupAttempt {
	first := items[0].Pod.Spec.SchedulerName
	a := &groupAttempt{
		attempts: as, group: g, profile: as.profiles.byName[first], tree: of,
		byAsked: make(map[*gang.Member]*member, len(items)),
	}
	members, asked := make([]member, len(items)), make([]gang.Member, len(items))
	for i, item := range items {
		p := as.profiles.byName[item.Pod.Spec.SchedulerName]
		m := &members[i]
		m.placement, m.asked = as.newPlacement(p, item), &asked[i]
		m.sibling = true
		item.Together = len(items)
		asked[i] = gang.Member{
			Pod: item.Pod, Waiting: m.Waiting, Asked: as.nominations.asContender(m.Waiting, item.Pod),
			Delayed: as.preemptions.mustDelay(item),
		}
		a.members, a.byAsked[m.asked] = append(a.members, m), m
	}

	a.attempt = gang.New(a.newRequest())
	return a
}

// findDiscord returns upstream's error if pending pods of groups that are decided together, and
// those placed before, do not all name one scheduler, or do not all have the priority of the group
// (all groups of a tree have its root's) and one preemption policy. Without it it would be the luck
// of the order who makes room for whom.
func (as *attempts) findDiscord(of []*groups.Group, items []*queue.Item) error {
	first := &items[0].Pod.Spec
	for _, item := range items {
		if name := item.Pod.Spec.SchedulerName; name != first.SchedulerName {
			return errSeveralSchedulers(name, first.SchedulerName)
		}
		if err := as.podGroups.compareWithGroup(of[0], item.Class, first.PreemptionPolicy); err != nil {
			return err
		}
	}
	for _, p := range as.podGroups.units.OnNodes(of...) {
		if err := as.podGroups.compareWithGroup(of[0], p.Class, first.PreemptionPolicy); err != nil {
			return err
		}
	}
	return nil
}

// compareWithGroup returns an error if a pod has another priority than its group, or another
// preemption policy than the group, where groups have one, or than the first of its pods.
func (gs *podGroups) compareWithGroup(g *groups.Group, class *cluster.PodClass, first *v1.PreemptionPolicy) error {
	if class.Priority != g.Priority() {
		return fmt.Errorf("all pods in a single pod group should have the same priority as the pod group's priority, got %d and %d",
			class.Priority, g.Priority())
	}
	of, all := policyOf(class.Spec.PreemptionPolicy), policyOf(first)
	if own := g.PreemptionPolicy(); gs.gates.Policy && of != own {
		return fmt.Errorf("all pods in a single pod group should have the same preemption policy as the pod group's preemption policy, "+
			"got %v and %v", of, own)
	}
	if of != all {
		return fmt.Errorf("all pods in a single pod group should have the same preemption policy, got %v and %v", of, all)
	}
	return nil
}

func policyOf(policy *v1.PreemptionPolicy) v1.PreemptionPolicy {
	if policy == nil {
		return v1.PreemptLowerPriority
	}
	return *policy
}

// newRequest returns what gang is asked about the members.
func (a *groupAttempt) newRequest() *gang.Request {
	members := make([]*gang.Member, len(a.members))
	for i, m := range a.members {
		members[i] = m.asked
	}

	r := &gang.Request{
		Cluster: a.cluster, Units: a.podGroups.units, Profile: a.profile.Profile.Profile, Decider: a.profile.Decider,
		Host: groupHost{a}, Rand: a.rng, Limits: a.limits,
		Group: a.group, Members: members, Need: a.podGroups.countMissing(a.group),
		Earlier: gang.Memory{Shortened: a.group.Shortened, Reached: a.group.Reached},
	}
	if a.podGroups.gates.Topology {
		r.TopologyKey = a.group.TopologyKey()
	}
	r.PlacedBefore, _ = a.podGroups.countPlaced(a.group)
	if a.tree != nil {
		a.tree.limit(r)
	}
	return r
}

// groupHost is the cycle as gang sees it.
type groupHost struct{ *groupAttempt }

// Reserve runs the Reserve step: of out-of-tree plugins too, so that their filters see what members
// before have reserved.
func (h groupHost) Reserve(m *gang.Member, n *cluster.Node) error {
	b := h.byAsked[m].placement
	b.Node = n.Name
	if err := h.placements.reserveOwn(b, n); err != nil {
		return err
	}
	return h.placements.reserveOutside(b)
}

// Release gives back what was reserved for a member.
func (h groupHost) Release(m *gang.Member) {
	b := h.byAsked[m].placement
	h.placements.giveBack(b)
	b.own, b.volumes, b.devices = nil, plugins.PodVolumes{}, deviceWork{}
	b.Node = ""
}

// Contender returns a pod as it competes with others for room.
func (h groupHost) Contender(p *cluster.Pod, pod *v1.Pod) *cluster.Pod {
	return h.nominations.asContender(p, pod)
}

// BeginPlacement tells out-of-tree plugins that members are decided anew.
func (h groupHost) BeginPlacement(domain string) {
	for _, e := range h.profile.beginGroup {
		if h.shown != nil {
			e.BeginPlacement(h.shown, domain)
		}
	}
}

// GeneratedPlacements reports in how many ways the group may be placed, where groups have
// topology constraints.
func (h groupHost) GeneratedPlacements(count int) {
	if h.podGroups.gates.Topology && !h.trial {
		h.observer().GeneratedPlacements(h.members[0].Profile, count)
		h.evaluated = h.clock()
	}
}

// EvaluatedPlacements reports that so many of these were judged since the last report.
func (h groupHost) EvaluatedPlacements(count int, feasible bool) {
	if count == 0 || !h.podGroups.gates.Topology || h.trial {
		return
	}
	now := h.clock()
	took := now.Sub(h.evaluated) / time.Duration(count)
	h.observer().EvaluatedPlacements(h.members[0].Profile, feasible, count, took)
	h.evaluated = now
}

// ScoresPlacements tells whether an out-of-tree plugin is at PlacementScore.
func (h groupHost) ScoresPlacements() bool {
	return h.shown != nil && len(h.profile.scorePlacements) > 0
}

// ScorePlacements adds up what these plugins give, by their weights.
func (h groupHost) ScorePlacements(list []gang.Placement) ([]float64, error) {
	placements := make([]GroupPlacement, len(list))
	for i := range list {
		placements[i] = h.describePlacement(list[i])
	}

	sums := make([]float64, len(list))
	for _, by := range h.profile.scorePlacements {
		scores, err := by.ScorePlacements(h.shown, placements)
		if err != nil {
			return nil, fmt.Errorf("running PlacementScore plugin %q: %w", by.Name(), err)
		}
		weight := max(1, h.profile.Weights[by.Name()])
		for i := range sums {
			sums[i] += float64(weight * scores[i])
		}
	}
	return sums, nil
}

// Leaving lists the preempted pods that are leaving known nodes.
func (h groupHost) Leaving() []*cluster.Pod { return h.preemptions.onTheirWay() }

// scheduleGroup decides the pending pods of a group, one of which was popped from the queue.
func (as *attempts) scheduleGroup(g *groups.Group, popped *queue.Item) {
	if root := g.Root(); root != nil {
		as.scheduleTree(root, popped)
		return
	}

	items := []*queue.Item{popped}
	for _, uid := range as.listQueued(g) { // the queue remembers in which order items left it
		if item := as.queue.Take(uid); item != nil {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, compareMembers)
	if as.podGroups.isIncomplete(g) { // something was deleted while they were active: their gate keeps them out
		for _, item := range items {
			as.queue.Failed(item, as.now)
		}
		return
	}

	a := as.newGroup(g, items, nil)
	defer a.endGroup()
	defer a.recoverPanic()
	if discord := as.findDiscord([]*groups.Group{g}, items); discord != nil {
		a.failAll(discord)
		as.observer().AttemptedGroup(popped.Pod.Spec.SchedulerName, Errored, 0)
		return
	}
	a.beginGroup()

	began := as.clock()
	result := a.settleGroup()
	as.observer().AttemptedGroup(popped.Pod.Spec.SchedulerName, result, as.clock().Sub(began))
}

// listQueued lists the members that are in the queue, in the order in which they came.
func (as *attempts) listQueued(g *groups.Group) []types.UID {
	var items []*queue.Item
	for uid := range g.Members {
		if item := as.queue.Get(uid); item != nil {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, earlier)

	uids := make([]types.UID, len(items))
	for i, item := range items {
		uids[i] = item.Pod.UID
	}
	return uids
}

// compareMembers orders the members of a group as they are decided, which is upstream's order:
// those that were tried most often come first, then the older ones.
func compareMembers(a, b *queue.Item) int {
	return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), cmp.Compare(b.Attempts, a.Attempts), earlier(a, b))
}

// settleGroup decides the members, and starts their placements or returns them to the queue.
func (a *groupAttempt) settleGroup() Result {
	began := a.clock()
	a.suspendNominations()
	err := a.attempt.Place()
	var found groupRescue
	if err != nil || !a.attempt.HasEnough() {
		a.attempt.Rewind()
		a.resumeNominations()
		if err == nil {
			found = a.findRoom()
			err, a.unhelped = found.err, found.toMembers
		}
		if plan := found.plan; plan != nil && !plan.Waits {
			a.suspendNominations()
			if !a.attempt.PlaceAs(plan) {
				a.resumeNominations()
			}
		}
	}

	took := a.clock().Sub(began)
	a.observer().Decided(took)
	a.observer().DecidedGroup(took)
	switch {
	case err != nil:
		a.failAll(err)
		return Errored
	case a.attempt.HasEnough():
		a.startPlacements()
		return Scheduled
	case found.nodes != nil:
		a.awaitRoom(found.nodes, a.wordsWith(found.message))
		return WaitingOnPreemption
	case found.plan != nil && found.plan.Waits:
		a.makeGroupRoom(found.plan)
		return WaitingOnPreemption
	}
	a.rejectAll(found.message)
	return Unschedulable
}

// recoverPanic ends the attempt of a group whose decision panicked, deferred by scheduleGroup.
func (a *groupAttempt) recoverPanic() {
	if value := recover(); value != nil {
		a.takeOff()
		a.resumeNominations()
		a.reportPanic(a.members[0].placement, value)
		a.endAfterPanic(value)
	}
}

// takeOff takes members off their nodes of which no placement has begun.
func (a *groupAttempt) takeOff() {
	for _, m := range a.members {
		if a.placements.byPod[m.Pod.UID] != m.placement {
			a.cluster.RemovePod(m.Pod.UID)
		}
	}
}

// endAfterPanic returns members to the queue whose binding has not begun.
func (a *groupAttempt) endAfterPanic(value any) {
	fault := &Fault{Message: fmt.Sprintf("internal error while the pod group was decided: %v", value)}
	for _, m := range a.members {
		switch {
		case a.placements.byPod[m.Pod.UID] == m.placement && m.stage == reserving:
			a.placements.takeBack(m.placement, fault)
		case a.placements.byPod[m.Pod.UID] == nil && m.item.Place() == queue.Taken:
			a.placements.giveBack(m.placement)
			m.endAttempt(false)
			a.requeueFailed(m.placement, fault)
		}
	}
}
