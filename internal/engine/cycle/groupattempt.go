package cycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// groupAttempt decides the pods of a group together. Meanwhile members are counted on nodes in the
// cluster model itself, so that each decision sees those before it. Until commit, none of that is
// reported, written, or reserved with out-of-tree plugins, and undo takes all of it back.
type groupAttempt struct {
	*attempts
	group   *groups.Group
	profile *profile
	members []*member      // by priority, then age, as upstream
	need    int            // members that must be placed, or none is
	placed  []*member      // counted on nodes now, in the order in which they were placed
	lifted  []*cluster.Pod // members whose nominations are withdrawn meanwhile; see lift

	searched  int    // judgements of nodes by the search
	gaveUp    bool   // the search ended at its limit
	domains   int    // how many the topology key has, at least 1; 0 if the group has no such key
	noDomain  string // says that there is none
	scored    []config.ResourceSpec
	fills     map[string]*fill // by domain
	requested []float64        // by all members, of the scored resources
	byDomain  map[string][]*cluster.Node
	closest   string               // the domain that most members found a node in; the failures of the others are those there
	effort    int                  // spent on trying domains, in judgements of nodes; see mostEffort
	cut       bool                 // domains were left out because it was used up
	untried   int                  // domains that are still to be tried, with the current one
	arranged  []place              // the members as victims were found for them last
	until     int                  // of the work of the profile's decider; see begin
	shortened bool                 // the bound was reached
	further   bool                 // the next attempt may come further; see noteReached
	reached   map[types.UID]string // the nodes of members that were counted when it was reached in the first pass
	declined  bool                 // a plugin at Reserve has turned down the node that was found for a member
	rest      bool                 // these members are the rest of a group that has been placed
	rejectors []string             // of all members; see noteRejectors
}

// member is a pod of a group that is being decided.
type member struct {
	*placement
	asked   *cluster.Pod    // the pod that is decided: Waiting, perhaps confined to a domain
	found   decide.Decision // the last decision by which it was counted
	failure *decide.Failure // why the first pass found no node for it; nil if it found one
	refused error           // of its decision, or of one of Berth's own plugins at Reserve
	nominee *cluster.Pod    // its nomination, while it is counted on a node
	rescue  memberRescue
}

// waitingForQuorum is upstream's message for members that would fit.
const waitingForQuorum = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, " +
	"one or more plugins asked to wait and no plugin rejected pod"

// errSeveralSchedulers returns upstream's error for a group whose pods name different schedulers.
func errSeveralSchedulers(one, another string) error {
	return fmt.Errorf("all pods in a single pod group should have the same .spec.schedulerName set, got: %q and %q", one, another)
}

// scheduleGroup decides the pending pods of a group, one of which was popped from the queue.
func (as *attempts) scheduleGroup(g *groups.Group, popped *queue.Item) {
	items := []*queue.Item{popped}
	for _, uid := range as.inOrder(g) { // the queue remembers in which order items left it
		if item := as.queue.Take(uid); item != nil {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, func(a, b *queue.Item) int {
		return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), earlier(a, b))
	})
	if as.podGroups.incomplete(g) { // something was deleted while they were active: their gate keeps them out
		for _, item := range items {
			as.queue.Failed(item, as.now)
		}
		return
	}
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

// inOrder are the members that are in the queue, in the order in which they came.
func (as *attempts) inOrder(g *groups.Group) []types.UID {
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

// settle decides the members, and starts their placements or returns them to the queue.
func (a *groupAttempt) settle() Result {
	began := a.clock()
	a.lift()
	err := a.decide()
	var promised map[*member]string
	var plan *roomPlan
	if placed := len(a.placed); err != nil || placed < a.need {
		a.undo(0)
		a.putBack()
		if err == nil {
			promised, plan = a.findRoom()
		}
		if plan != nil && !plan.waits { // it fits as things are, in another way
			a.lift()
			for _, p := range plan.places {
				_ = a.count(p.member, p.found)
			}
			if len(a.placed) < a.need {
				a.undo(0)
				a.putBack()
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
	case len(a.placed) >= a.need:
		a.commit()
		return Scheduled
	case promised != nil:
		a.awaitRoom(promised)
		return WaitingOnPreemption
	case plan != nil && plan.waits:
		a.makeGroupRoom(plan)
		return WaitingOnPreemption
	}
	a.rejectAll()
	return Unschedulable
}

// decide looks for nodes, and leaves every member that has one counted there.
func (a *groupAttempt) decide() error {
	if len(a.members) < a.need {
		return nil // the others are kept out by their own gates
	}
	err := a.decideAsNominated()
	switch {
	case err != nil || a.shortened || len(a.placed) == len(a.members) || !a.keepRoomFromEachOther():
		return err
	case len(a.placed) >= a.need:
		return a.unnominated(a.again)
	}
	a.undo(0)
	return a.unnominated(a.decideAsNominated)
}

// keepRoomFromEachOther tells whether a member is nominated while another one has no node: as
// things are now, that one may fit where only the room for the first one is left.
func (a *groupAttempt) keepRoomFromEachOther() bool {
	return len(a.members) > 1 && slices.ContainsFunc(a.members, func(m *member) bool {
		return m.nominee != nil || a.cluster.Nominated(m.Pod.UID) != nil
	})
}

// unnominated places members while those that have no node keep no room where they are nominated.
func (a *groupAttempt) unnominated(place func() error) error {
	nominees := map[*member]*cluster.Pod{}
	for _, m := range a.members {
		if p := a.cluster.Nominated(m.Pod.UID); p != nil {
			nominees[m] = p
			a.cluster.Unnominate(p.UID)
		}
	}

	err := place()
	for _, m := range a.members {
		switch p := nominees[m]; {
		case p == nil:
		case m.Node != "":
			m.nominee = p
		default:
			a.cluster.Nominate(p, p.Nominated)
		}
	}

	return err
}

// decideAsNominated is decide where members leave those that are nominated their room.
func (a *groupAttempt) decideAsNominated() error {
	a.begin()
	if key := a.group.TopologyKey(); key != "" && a.podGroups.gates.Topology {
		return a.placeInDomain(key)
	}
	return a.place()
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

// count counts a member on a node, and reserves what it needs there.
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

// free gives back what was reserved for a member that is not counted on a node.
func (a *groupAttempt) free(m *member) {
	a.placements.giveBack(m.placement)
	m.own, m.volumes, m.devices = nil, plugins.PodVolumes{}, deviceWork{}
	m.Node, m.Waiting.NodeName = "", ""
}

// undo takes back all placed members but the first keep.
func (a *groupAttempt) undo(keep int) {
	for len(a.placed) > keep {
		last := len(a.placed) - 1
		m := a.placed[last]
		a.placed = a.placed[:last]
		a.takeOff(m)
	}
}

// takeOff takes back a member that is no longer in placed.
func (a *groupAttempt) takeOff(m *member) {
	a.cluster.RemovePod(m.Pod.UID)
	a.free(m)
	if m.nominee != nil {
		a.cluster.Nominate(m.nominee, m.nominee.Nominated)
		m.nominee = nil
	}
}

// try decides a member and counts it on its node. It returns false if there is none.
func (a *groupAttempt) try(m *member) (bool, error) {
	a.effort += costOfDecision
	return a.take(m, a.profile.Decide(m.asked))
}

// take counts a member on the node that was found for it, if there is one.
func (a *groupAttempt) take(m *member, found decide.Decision) (bool, error) {
	if found.Err != nil {
		m.refused = found.Err
		return false, found.Err
	}
	if found.Node == nil {
		return false, nil
	}
	if err := a.count(m, found); err != nil {
		if refused := (*rejection)(nil); errors.As(err, &refused) {
			a.declined = true
			return false, nil
		}
		m.refused = err
		return false, err
	}
	return true, nil
}

// waits are how long Permit plugins make a pod wait at most, by plugin.
type waits = map[string]time.Duration
