package cycle

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// podGroups are the books of pod groups. The pods of a group are items of the queue like any
// others; whichever is popped first takes its siblings along, and they are decided, counted on
// their nodes, asked about at Permit and given up in one step: see scheduleGroup. From then on each
// is a placement of its own.
//
// The rule of the quorum: a gang asks for minCount pods on nodes, those that have one included,
// until it was scheduled once. It was when minCount pods of it were bound and the PodGroup says so
// (PodGroupScheduled is True), and it counts as long as one of its pods is bound. After that a pod
// that is replaced is placed alone, whatever became of the others.
type podGroups struct {
	*groups.Set
	groups.Gates
	limit int // of what is tried to place a group whose pods differ
	// out: pods that their groups keep out of the queue since the last tick.
	out []types.UID
}

func newPodGroups(gates groups.Gates, limit int) *podGroups {
	return &podGroups{Set: groups.New(), Gates: gates, limit: limit}
}

// groupOf returns the group that an item is scheduled with, or nil.
func (c *Core) groupOf(item *queue.Item) *groups.Group {
	if c.groups == nil {
		return nil
	}
	return c.groups.Of(item.Pod.UID)
}

// seeGroup takes in a PodGroup.
func (c *Core) seeGroup(object *groups.PodGroup) {
	object.ManagedFields = nil
	g := c.groups.Get(nameOf(object))
	fresh := g == nil || g.Object == nil || g.Object.UID != object.UID
	least := 0
	if g != nil {
		least = g.MinCount()
	}
	if fresh && g != nil {
		g.Forget()
	}
	if g = c.groups.SetObject(object); fresh || g.MinCount() != least {
		c.wakeGroup(g, "PodGroupAdd")
		c.unitsChanged(g, "PodGroupAdd")
		g.Short = 0 // what it asks for may be less now
		c.settleGroup(g)
	}
}

// loseGroup forgets a PodGroup. Its pods on their way go on; others are kept out until there is one
// again.
func (c *Core) loseGroup(name cluster.Name) {
	if g := c.groups.Get(name); g != nil {
		c.unitsChanged(g, "PodGroupDelete")
	}
	c.groups.LoseObject(name)
	if g := c.groups.Get(name); g != nil {
		c.keepOut(g)
	}
}

// unitsChanged wakes pods that wait: whom they may preempt depends on a group that is disrupted as
// a whole, and on its priority.
func (c *Core) unitsChanged(g *groups.Group, label string) {
	if !c.groups.Preemption || !g.Whole() && g.Count() == 0 {
		return
	}
	for _, item := range c.queue.Sorted() {
		if item.Place() == queue.Waiting {
			c.queue.Wake(item.Pod.UID, label, c.now)
		}
	}
}

// joinGroup takes in which group a pod is a member of, and returns what is to be done when all else
// of the pod was taken in.
func (c *Core) joinGroup(pod *v1.Pod) (then func()) {
	switch {
	case c.groups == nil || groups.NameOf(pod) == "":
		return func() {}
	case rules.IsTerminal(pod):
		return func() { c.leaveGroup(pod.UID) }
	}
	counts := pod.Spec.NodeName != "" || c.profiles[pod.Spec.SchedulerName] != nil
	g, joined := c.groups.SetPod(pod, counts)
	if joined && g.Count() == g.MinCount() {
		c.wakeGroup(g, queue.Appeared)
	}
	return func() {
		if pod.Spec.NodeName != "" {
			c.settleGroup(g)
		}
	}
}

// settleGroups looks which groups were scheduled before this scheduler began, without a word of it.
func (c *Core) settleGroups() {
	if c.groups == nil {
		return
	}
	for _, g := range c.groups.Sorted() {
		c.settleGroup(g)
	}
}

// settleGroup says that a group is scheduled if it has what it asks for and nobody has said so. It
// is called whenever a pod of it may have been bound.
func (c *Core) settleGroup(g *groups.Group) {
	if !c.decides() || !c.begun || g.Object == nil || g.Done || g.Scheduled() || g.Count() < g.MinCount() {
		return
	}
	if g.Short > 1 { // one pod more, at most, was bound since they were counted
		g.Short--
		return
	}
	_, bound := c.placed(g)
	if g.Short = max(1, g.MinCount()) - bound; g.Short <= 0 {
		g.Done = true
		c.writeScheduled(g)
	}
}

// leaveGroup forgets a member that was deleted or has ended.
func (c *Core) leaveGroup(uid types.UID) {
	if c.groups == nil {
		return
	}
	if g := c.groups.LosePod(uid); g != nil {
		c.keepOut(g)
	}
}

// keepOut asks about the members again that wait, or are kept out while room is being made for
// them, since the group may be incomplete now.
func (c *Core) keepOut(g *groups.Group) {
	var waiting []*queue.Item
	for uid := range g.Members {
		item := c.queue.Get(uid)
		if item != nil && (item.Place() == queue.Waiting || item.Place() == queue.Gated) && c.groupGate(item) == groups.GangScheduling {
			waiting = append(waiting, item)
		}
	}
	slices.SortFunc(waiting, earlier)
	for _, item := range waiting {
		c.queue.Wake(item.Pod.UID, "PodGroupIncomplete", c.now)
	}
}

// moved follows the places of pods in the queue.
func (c *Core) moved(item *queue.Item, label string) {
	c.observer().Queued(item.Place(), label)
	if item.Gate == groups.GangScheduling && c.cluster.Nominated(item.Pod.UID) != nil {
		c.groups.out = append(c.groups.out, item.Pod.UID)
	}
}

// keepNoRoom clears the nominations of pods that their groups keep out: nobody knows when these
// will be tried again, and others can use the room.
func (c *Core) keepNoRoom() {
	if c.groups == nil {
		return
	}
	for _, uid := range c.groups.out {
		if item := c.queue.Get(uid); item != nil && item.Gate == groups.GangScheduling {
			c.unnominate(uid)
		}
	}
	c.groups.out = c.groups.out[:0]
}

// wakeGroup asks about the members again that are kept out.
func (c *Core) wakeGroup(g *groups.Group, label string) {
	if g == nil {
		return
	}
	var gated []*queue.Item
	for uid := range g.Members {
		if item := c.queue.Get(uid); item != nil && item.Place() == queue.Gated {
			gated = append(gated, item)
		}
	}
	slices.SortFunc(gated, earlier)
	for _, item := range gated {
		c.queue.Wake(item.Pod.UID, label, c.now)
	}
}

func earlier(a, b *queue.Item) int {
	if a.Earlier(b) {
		return -1
	}
	return 1
}

// groupGate names what keeps a member of a group out of the queue: there is no PodGroup, a gang has
// too few pods to be scheduled as a whole, or room is being made for the group.
func (c *Core) groupGate(item *queue.Item) string {
	g := c.groupOf(item)
	switch {
	case g == nil:
		return ""
	case g.Object == nil || g.Count() < g.MinCount() && c.groups.Gang && !c.started(g):
		return groups.GangScheduling
	case c.preemptions.rounds[g.Object.UID] != nil:
		return c.preempterOf(item)
	}
	return ""
}

// preempterOf names the plugin that has room made for a pod; groups make it where there is none any
// more, since the profiles have changed.
func (c *Core) preempterOf(item *queue.Item) string {
	if p := c.profiles[item.Pod.Spec.SchedulerName]; p != nil {
		for _, name := range p.At[plugins.PostFilter] {
			if _, ok := p.Plugin(name).(plugins.Preempter); ok {
				return name
			}
		}
	}
	return groups.GangScheduling
}

// started tells whether the group has been scheduled and is still there: see podGroups.
func (c *Core) started(g *groups.Group) bool {
	if !g.Scheduled() && !g.Done {
		return false
	}
	for uid := range g.Members {
		if c.isBound(uid) {
			return true
		}
	}
	return false
}

// isBound tells whether a pod has its node for good.
func (c *Core) isBound(uid types.UID) bool {
	b := c.placements.byPod[uid]
	return c.cluster.Pod(uid) != nil && (b == nil || b.stage == bound)
}

// placed counts the members that have a node or are on their way to one, and bound those of them
// that have it for good.
func (c *Core) placed(g *groups.Group) (placed, bound int) {
	for uid := range g.Members {
		if c.cluster.Pod(uid) != nil {
			placed++
			if c.isBound(uid) {
				bound++
			}
		}
	}
	return placed, bound
}

// missing is how many members must be placed together now: what a gang lacks of its quorum, or one.
func (c *Core) missing(g *groups.Group) int {
	if !c.groups.Gang || g.MinCount() == 0 || c.started(g) {
		return 1
	}
	placed, _ := c.placed(g)
	return max(1, g.MinCount()-placed)
}

// errGroupBroken ends what is under way for members of a gang that can no longer be scheduled as a
// whole.
var errGroupBroken = &Fault{Message: waitingForQuorum, Verdict: true}

// memberLost sees to the siblings of a pod that is not bound after all. If it was deleted, refused
// or preempted, a gang that is not complete without it lets all go that are not bound yet, in the
// same step. If something went wrong with it alone, or its node is gone, it is tried again and the
// others hold what they have.
func (c *Core) memberLost(b *placement, why error) {
	g := c.groupOf(b.item)
	if g == nil || b.sibling || why == error(errGroupBroken) || !breaks(why) || !c.groups.Gang || c.started(g) {
		return
	}
	if placed, bound := c.placed(g); placed >= g.MinCount() || bound > 0 {
		return
	}
	var siblings []*placement
	for uid := range g.Members {
		if other := c.placements.byPod[uid]; other != nil && other.ending == nil {
			siblings = append(siblings, other)
		}
	}
	slices.SortFunc(siblings, func(a, b *placement) int { return earlier(a.item, b.item) })
	for _, other := range siblings {
		c.withdraw(other, errGroupBroken)
	}
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

// memberBound looks whether the pod that was bound is the last one that the quorum asked for.
func (c *Core) memberBound(b *placement) {
	if g := c.groupOf(b.item); g != nil {
		c.settleGroup(g)
	}
}

// groupByUID returns the group of that object, or nil.
func (c *Core) groupByUID(uid types.UID) *groups.Group {
	if c.groups == nil {
		return nil
	}
	return c.groups.ByUID(uid)
}
