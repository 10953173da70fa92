package cycle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// podGroups knows how many pods groups have placed and how many they lack, and writes their
// conditions. The pods of a group are items of the queue like any others. The first one that is
// popped takes its siblings along: they are decided, counted on their nodes, asked about at Permit,
// or given up in one step; see scheduleGroup. From then on each is a placement of its own.
//
// The quorum: until a gang has been scheduled once, minCount of its pods must have nodes together,
// including those that already have one. It has been scheduled when minCount of its pods were bound
// and the PodGroup says so (PodGroupInitiallyScheduled is True), and that holds as long as one of
// its pods is bound. From then on a pod that replaces another is placed alone, whatever happened to
// the rest. Pods that are being deleted do not count: those that take their place would be half a
// gang.
type podGroups struct {
	*common
	ready      *readiness
	placements *placements
	gates      groups.Gates // which features are on
	units      gang.Units

	// held are the members of each group that a gate of their own keeps out of the queue, with the
	// plugin. As long as there is one, the whole group is kept out. changed are the groups of which
	// the first was kept out, or the last let in, since regateHeld.
	held    map[*groups.Group]map[types.UID]string
	changed []*groups.Group
}

// noteHeld notes which gate of its own keeps a member out of the queue; "" is none.
func (gs *podGroups) noteHeld(g *groups.Group, uid types.UID, gate string) {
	before := len(gs.held[g])
	switch {
	case gate != "" && before == 0:
		gs.held[g] = map[types.UID]string{uid: gate}
	case gate != "":
		gs.held[g][uid] = gate
	default:
		delete(gs.held[g], uid)
	}

	if len(gs.held[g]) == 0 {
		delete(gs.held, g)
	}
	if (before == 0) != (len(gs.held[g]) == 0) {
		gs.changed = append(gs.changed, g)
	}
}

// heldBy names the gate that keeps a group out because of one of its members, or of another group
// of its tree, or "".
func (gs *podGroups) heldBy(g *groups.Group) (gate string) {
	if len(gs.held) == 0 {
		return ""
	}
	for _, g := range g.Tree() {
		for _, name := range gs.held[g] {
			if gate == "" || name < gate {
				gate = name
			}
		}
	}
	return gate
}

// keepsOut tells whether the group keeps its pods out of the queue.
func (gs *podGroups) keepsOut(g *groups.Group) bool { return gs.isIncomplete(g) || gs.heldBy(g) != "" }

// regateHeld has the gates asked again about the members of groups of which one is kept out now, or
// none any more.
func (gs *podGroups) regateHeld() {
	for len(gs.changed) > 0 {
		g := gs.changed[0]
		gs.changed = gs.changed[1:]
		if gs.heldBy(g) == "" {
			gs.wakeMembers(g, queue.Appeared, queue.Gated)
			continue
		}
		for _, item := range gs.listMembers(g, queue.Active, queue.Backoff) {
			gs.queue.Recheck(item.Pod.UID, "PodGroupIncomplete", gs.now)
		}
		gs.wakeMembers(g, "PodGroupIncomplete", queue.Waiting)
	}
	gs.changed = nil
}

// seen takes in a PodGroup.
func (gs *podGroups) seen(object *groups.PodGroup) {
	object.ManagedFields = nil
	if gs.options.Objects != nil {
		gs.options.Objects.Group(object)
	}
	g := gs.groups.Get(nameOf(object))
	fresh := g == nil || g.Object == nil || g.Object.UID != object.UID
	if fresh && gs.gates.Claims {
		if len(object.Spec.ResourceClaims) > 0 {
			gs.cluster.PodGroups.Set(object)
		} else {
			gs.cluster.PodGroups.Delete(object.Namespace, object.Name)
		}
	}
	least, scheduled := 0, false
	if g != nil {
		least, scheduled = g.MinCount(), g.Done || g.Scheduled()
	}
	if fresh && g != nil {
		g.Forget()
	}
	g = gs.groups.SetObject(object)
	if fresh && g.Parent() != nil {
		gs.regroup(g)
		gs.recheckMembers(g, "PodGroupAdd")
	}
	switch {
	case fresh || g.MinCount() != least:
		gs.wakeMembers(g, "PodGroupAdd", queue.Gated, queue.Waiting)
		gs.unitsChanged("PodGroupAdd", g.Together()...)
		g.Short, g.Full = 0, false // what it asks for may be less now
		gs.updateScheduled(g)
	case !scheduled:
		gs.wakeStarted(g)
	}
}

// gone forgets a PodGroup. Its pods on their way to a node continue; the others are kept out of the
// queue until there is a PodGroup again.
func (gs *podGroups) gone(name cluster.Name) {
	if gs.options.Objects != nil {
		gs.options.Objects.GroupGone(name)
	}
	var tree []*groups.Group
	if g := gs.groups.Get(name); g != nil {
		gs.unitsChanged("PodGroupDelete", g.Together()...)
		tree = g.Tree()
	}
	gs.groups.LoseObject(name)
	if gs.gates.Claims {
		gs.cluster.PodGroups.Delete(name.Namespace, name.Name)
	}
	if g := gs.groups.Get(name); g != nil {
		gs.regroup(g)
		gs.keepOut(g)
	}
	for _, other := range tree {
		if other.Object != nil {
			gs.recheckMembers(other, "PodGroupDelete") // and with them the others of the tree
			break
		}
	}
}

// unitsChanged wakes waiting pods when a group with pods on nodes has appeared, changed or gone:
// which pods they may preempt depends on whether it is disrupted as a whole, and on its priority.
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

// addPod records which group a pod is a member of, and returns what to do after the rest of the pod
// was taken in. served: a profile serves the pod's scheduler name.
func (gs *podGroups) addPod(pod *v1.Pod, served bool) (then func()) {
	switch {
	case !gs.gates.Generic || groups.NameOf(pod) == "":
		return func() {}
	case rules.IsTerminal(pod):
		return func() { gs.removePod(pod.UID) }
	}

	counts := pod.Spec.NodeName != "" || served
	g, by := gs.groups.SetPod(pod, counts)
	switch {
	case by <= 0:
	case g.Parent() != nil:
		gs.noteJoined(g, pod)
	case g.Count() == g.MinCount():
		gs.wakeMembers(g, queue.Appeared, queue.Gated)
	}

	return func() {
		gs.noteCount(g, by)
		if pod.Spec.NodeName != "" {
			gs.updateScheduled(g)
			gs.wakeStarted(g)
		}
	}
}

// wakeStarted has the gates asked again about members of a gang that is found to have been
// scheduled: it may have fewer pods than it asks for. Whether it has been depends on its condition
// and on its bound pods, and a list may show those last.
func (gs *podGroups) wakeStarted(g *groups.Group) {
	if g.Parent() != nil {
		gs.wakeStartedTree(g)
		return
	}
	if g.Count() < g.MinCount() && gs.isStarted(g) {
		gs.wakeMembers(g, queue.Appeared, queue.Gated)
	}
}

// updateAllScheduled finds groups that were scheduled before this scheduler began, and do not say
// so yet.
func (gs *podGroups) updateAllScheduled() {
	for _, g := range gs.groups.Sorted() {
		gs.updateScheduled(g)
	}
}

// updateScheduled writes that a group is scheduled, if it has what it asks for and does not say so
// yet. It is called whenever one of its pods may have been bound.
func (gs *podGroups) updateScheduled(g *groups.Group) {
	switch {
	case !gs.ready.mayDecide() || !gs.ready.begun || g.Object == nil || g.Done || g.Scheduled():
		return
	case g.Count() < g.MinCount():
		g.Short = 0 // others may be bound until it is complete again
		return
	case g.Short > 1: // at most one more pod was bound since they were counted
		g.Short--
		return
	}
	_, bound := gs.countPlaced(g)
	switch g.Short = leastOf(g) - bound; {
	case g.Short > 0:
	case g.Parent() != nil:
		if !g.Full {
			g.Full = true
			gs.updateTree(g.Root())
		}
	default:
		g.Done = true
		gs.writeScheduled(g)
	}
}

// leastOf is how many of its pods a group must have on nodes to be placed.
func leastOf(g *groups.Group) int { return max(1, g.MinCount()) }

// removePod forgets a member that was deleted or has ended.
func (gs *podGroups) removePod(uid types.UID) { gs.noteCount(gs.groups.LosePod(uid)) }

// noteCount keeps members out of the queue if the group has become incomplete with a change of its
// count: one pod too few, or without the last one that was bound. There may be thousands of members
// that all go.
func (gs *podGroups) noteCount(g *groups.Group, by int) {
	least := 0
	if g != nil {
		least = g.MinCount()
		if g.Parent() != nil {
			least = leastOf(g)
		}
	}
	if by < 0 {
		g.Full, g.Woken = false, false
	}
	if by < 0 && (g.Count() == least-1 || g.Done || g.Scheduled()) {
		gs.keepOut(g)
	}
}

// keepOut has the gates asked again about members that wait, or are gated while room is being made
// for them, since the group may be incomplete now.
func (gs *podGroups) keepOut(g *groups.Group) {
	if gs.isIncomplete(g) {
		gs.wakeMembers(g, "PodGroupIncomplete", queue.Waiting, queue.Gated)
	}
}

// wakeMembers has the gates asked again about members in these places of the queue, and about those
// of the other groups of a tree.
func (gs *podGroups) wakeMembers(g *groups.Group, label string, places ...queue.Place) {
	if g == nil {
		return
	}
	for _, item := range gs.listMembers(g, places...) {
		gs.queue.Wake(item.Pod.UID, label, gs.now)
	}
}

// listMembers lists the members in these places of the queue, and those of the other groups of a
// tree, in the order in which they came.
func (gs *podGroups) listMembers(g *groups.Group, places ...queue.Place) (items []*queue.Item) {
	for _, g := range g.Tree() {
		for uid := range g.Members {
			if item := gs.queue.Get(uid); item != nil && slices.Contains(places, item.Place()) {
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

// isIncomplete tells whether the group keeps its pods out of the queue: there is no PodGroup, or a
// gang has too few pods to be scheduled as a whole. A group in a tree does if the tree does: an
// incomplete group is decided, and found to be incomplete, while others of the tree are placed.
func (gs *podGroups) isIncomplete(g *groups.Group) bool {
	if g.Object != nil && g.Parent() != nil {
		root := g.Root()
		return root == nil || !gs.isReady(groups.Child{Composite: root})
	}
	return g.Object == nil || g.Count() < g.MinCount() && !gs.isStarted(g)
}

// isStarted tells whether the group has been scheduled and is still there: see podGroups.
func (gs *podGroups) isStarted(g *groups.Group) bool {
	if !g.Scheduled() && !g.Done {
		return false
	}
	for uid := range g.Counted {
		if gs.isBound(uid) {
			return true
		}
	}
	return false
}

// isBound tells whether a pod has its node for good.
func (gs *podGroups) isBound(uid types.UID) bool {
	b := gs.placements.byPod[uid]
	return gs.cluster.Pod(uid) != nil && (b == nil || b.stage == bound)
}

// countPlaced counts the members that have a node or are on their way to one, and bound those of
// them that have it for good. Members that are being deleted are not among them.
func (gs *podGroups) countPlaced(g *groups.Group) (placed, bound int) {
	for uid := range g.Counted {
		if gs.cluster.Pod(uid) != nil {
			placed++
			if gs.isBound(uid) {
				bound++
			}
		}
	}
	return placed, bound
}

// countMissing is how many members must be placed together now: what a gang lacks of its quorum, or
// one.
func (gs *podGroups) countMissing(g *groups.Group) int {
	if g.MinCount() == 0 || gs.isStarted(g) {
		return 1
	}
	placed, _ := gs.countPlaced(g)
	return max(1, g.MinCount()-placed)
}

// errGroupBroken ends what is under way for members of a gang that can no longer be scheduled as a
// whole.
var errGroupBroken = &Fault{
	Message: "pod group is unschedulable: too few of its pods are left to be scheduled together", Verdict: true,
}

// memberLost handles the siblings of a pod that is not bound after all. If it was deleted, refused
// or preempted, and its gang is incomplete without it and has no bound pod, the placements of all
// siblings are withdrawn in the same step. If an error concerned it alone, or its node is gone, it
// is tried again and the others keep what they have.
func (gs *podGroups) memberLost(b *placement, why error) {
	g := gs.groupOf(b.item)
	if g == nil || b.sibling || why == error(errGroupBroken) || !breaks(why) || gs.isStarted(g) {
		return
	}

	var siblings []*placement
	for _, g := range gs.listBroken(g) {
		for uid := range g.Members {
			if other := gs.placements.byPod[uid]; other != nil && other.ending == nil {
				siblings = append(siblings, other)
			}
		}
	}

	slices.SortFunc(siblings, func(a, b *placement) int { return earlier(a.item, b.item) })
	for _, other := range siblings {
		gs.placements.stopBinding(other, errGroupBroken)
	}
}

// listBroken lists the groups whose placements are given up after a loss in this one: itself, if it
// can no longer be placed as a whole, and with it those of the tree that then cannot.
func (gs *podGroups) listBroken(g *groups.Group) []*groups.Group {
	if g.Parent() != nil {
		return gs.listBrokenInTree(g)
	}
	if placed, bound := gs.countPlaced(g); placed >= g.MinCount() || bound > 0 {
		return nil
	}
	return []*groups.Group{g}
}

// breaks tells whether a pod was lost to its group, as opposed to an attempt that went wrong.
func breaks(why error) bool {
	switch why := why.(type) {
	case *rejection:
		return true
	case *Fault:
		return why.Verdict || why == errGone || why == errPreempted
	}
	return false
}

// memberBound checks whether the pod that was bound completes the quorum.
func (gs *podGroups) memberBound(b *placement) {
	if g := gs.groupOf(b.item); g != nil {
		gs.updateScheduled(g)
	}
}
