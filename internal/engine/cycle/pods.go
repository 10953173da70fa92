package cycle

import (
	"maps"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// seePod takes in a pod that the API shows; old is its previous state, if that is kept.
func (c *Core) seePod(pod, old *v1.Pod) {
	if c.options.Objects != nil {
		if rules.IsTerminal(pod) {
			c.options.Objects.PodGone(pod.UID)
		} else {
			c.options.Objects.Pod(pod)
		}
	}
	defer c.joinGroup(pod)()
	switch {
	case pod.Spec.NodeName != "" || rules.IsTerminal(pod):
		c.placedPod(pod, old)
	case pod.DeletionTimestamp != nil:
		c.abandon(pod.UID, errGone)
		c.dismiss(pod.UID)
	case c.profiles[pod.Spec.SchedulerName] == nil:
		c.unserved[pod.UID] = unservedPod{nameOf(pod), pod.Spec.SchedulerName}
	case c.cluster.Pod(pod.UID) != nil: // placed in its former state; if it returns to the queue, the new state counts
		if item := c.queue.Get(pod.UID); item != nil {
			c.updateItem(item, pod, c.cluster.Pending(pod), 0)
		}
	default:
		delete(c.unserved, pod.UID)
		c.pendingPod(pod)
	}
}

// pendingPod takes in a pod that is to be scheduled.
func (c *Core) pendingPod(pod *v1.Pod) {
	p := c.cluster.Pending(pod)
	item := c.queue.Get(pod.UID)
	if item == nil {
		item = c.queue.Add(c.kept(pod, p.Class), p.Class, c.now)
		item.Patient = c.groupOf(item) != nil
		return
	}
	nominated := !item.Admitted.IsZero() && c.followNomination(item.Pod, pod, p)
	if c.cluster.Nominated(pod.UID) != nil {
		c.cluster.Renew(c.contender(p, pod))
	}
	var least queue.Action
	if c.outside && item.Pod.ResourceVersion != pod.ResourceVersion {
		least = queue.Update // plugins interested in pod updates hear of every one
	}
	c.updateItem(item, pod, p, least)
	if nominated {
		c.queue.Wake(pod.UID, queue.Changed, c.now)
	}
}

// updateItem takes in the new state of a pending pod. least is what is reported to have changed if
// nothing else has.
func (c *Core) updateItem(item *queue.Item, pod *v1.Pod, p *cluster.Pod, least queue.Action) {
	pod = c.kept(pod, p.Class)
	actions := changes(item.Pod, pod, p.Class != item.Class)
	if actions == 0 {
		actions = least
	}
	c.queue.Update(item, pod, p.Class, actions, c.now)
}

// admitted adopts the nomination of a pod that passed its gates. A gated pod keeps no room on its
// nominated node.
func (c *Core) admitted(item *queue.Item) {
	if node := item.Pod.Status.NominatedNodeName; node != "" {
		p := &cluster.Pod{Class: item.Class, Name: item.Pod.Name, UID: item.Pod.UID, Created: item.Pod.CreationTimestamp.Time}
		c.cluster.Nominate(c.contender(p, item.Pod), node)
	}
}

// followNomination adopts a nomination that another client has set or cleared. Where this scheduler
// already decided otherwise, its own write has not been shown yet, and its decision stays. A pod
// that is nominated now has to be tried, so that it takes the room kept for it or gives it up.
func (c *Core) followNomination(old, pod *v1.Pod, p *cluster.Pod) (nominated bool) {
	was, is := old.Status.NominatedNodeName, pod.Status.NominatedNodeName
	current := ""
	if nominated := c.cluster.Nominated(pod.UID); nominated != nil {
		current = nominated.Nominated
	}
	if was == is || current != was || c.queue.Get(pod.UID).Gate == groups.GangScheduling {
		return false
	}
	c.unnominate(pod.UID)
	if is != "" {
		c.cluster.Nominate(c.contender(p, pod), is)
	}
	return is != ""
}

// changes tells what has changed about a pending pod that may matter. The scheduler's own writes do
// not count.
func changes(old, pod *v1.Pod, decisive bool) (actions queue.Action) {
	if !maps.Equal(old.Labels, pod.Labels) {
		actions |= queue.UpdatePodLabel
	}
	if len(old.Spec.Tolerations) != len(pod.Spec.Tolerations) {
		actions |= queue.UpdatePodToleration
	}
	if len(old.Spec.SchedulingGates) > 0 && len(pod.Spec.SchedulingGates) == 0 {
		actions |= queue.UpdatePodSchedulingGatesEliminated
	}
	if decisive && lessRequested(old, pod) {
		actions |= queue.UpdatePodScaleDown
	}
	if !reflect.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) ||
		!reflect.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus) {
		actions |= queue.UpdatePodGeneratedResourceClaim
	}
	if actions == 0 && (decisive || !maps.Equal(old.Annotations, pod.Annotations) || old.Generation != pod.Generation ||
		len(old.Spec.SchedulingGates) != len(pod.Spec.SchedulingGates)) {
		actions = queue.Update
	}
	return actions
}

func lessRequested(old, pod *v1.Pod) bool {
	requests := rules.Requests(pod)
	for name, amount := range rules.Requests(old) {
		if now := requests[name]; now.Cmp(amount) < 0 {
			return true
		}
	}
	return false
}

// unservedPod is a pending pod of a scheduler name without a profile.
type unservedPod struct {
	cluster.Name
	scheduler string
}

// readPod takes in a pod that was fetched. It may be older than what the watch has shown, so it
// only counts where the watch cannot have shown more: for an unserved pod, and for one that a
// binding found on another node.
func (c *Core) readPod(pod *v1.Pod) {
	_, unserved := c.unserved[pod.UID]
	if unserved && pod.Spec.NodeName == "" || c.placements.byPod[pod.UID] != nil && pod.Spec.NodeName != "" {
		c.seePod(pod, nil)
	}
}

// dismiss removes a pod from the queue and from everything kept about pending pods.
func (c *Core) dismiss(uid types.UID) {
	c.queue.Remove(uid)
	delete(c.decisions.waiting, uid)
	c.unnominate(uid)
	delete(c.unserved, uid)
}

// unnominate clears a pod's nomination, which may make room for others on that node.
func (c *Core) unnominate(uid types.UID) {
	if p := c.cluster.Nominated(uid); p != nil {
		c.cluster.Unnominate(uid)
		c.left(p, c.cluster.Node(p.Nominated), nil)
	}
}

// placedPod takes in a pod that has a node or has ended.
func (c *Core) placedPod(pod, old *v1.Pod) {
	c.compare(pod)
	if b := c.placements.byPod[pod.UID]; b != nil {
		if pod.Spec.NodeName == b.Node && !rules.IsTerminal(pod) {
			c.confirm(b)
		} else { // another client bound it, or it has ended
			c.abandon(pod.UID, errBoundElsewhere)
		}
	}
	if nominated := c.cluster.Nominated(pod.UID); nominated != nil && nominated.Nominated != pod.Spec.NodeName {
		c.unnominate(pod.UID)
	}
	c.dismiss(pod.UID)
	before := c.cluster.Pod(pod.UID)
	var was cluster.Pod // a copy: SetPod may change it
	var at *cluster.Node
	if before != nil {
		was, at = *before, before.Node
	}
	after := c.setPod(pod)
	switch {
	case before == nil && after != nil:
		c.came(after, pod)
	case before != nil && after == nil:
		c.left(&was, at, pod)
	case before != nil && before != after:
		c.changedPlaced(&was, at, after, old, pod)
	case before != nil && c.outside && old != nil && old.Spec.NodeName == pod.Spec.NodeName && !sameVersion(old, pod):
		c.happened(queue.Event{
			Resource: queue.Pod, Action: changes(old, pod, true), Label: "AssignedPodUpdate", PodBefore: before, Pod: after, Node: after.Node,
			Old: old, New: pod,
		})
	}
}

// setPod puts a pod into the cluster model. A victim counts as terminating until a watch shows it
// so.
func (c *Core) setPod(pod *v1.Pod) *cluster.Pod {
	p := c.cluster.SetPod(pod)
	if !c.preemptions.leaving[pod.UID] {
		return p
	}
	if p == nil || pod.DeletionTimestamp != nil {
		delete(c.preemptions.leaving, pod.UID)
		return p
	}
	return c.replaceAs(p, true)
}

// losePod forgets a deleted pod.
func (c *Core) losePod(last *v1.Pod, uid types.UID) {
	if c.options.Objects != nil {
		c.options.Objects.PodGone(uid)
	}
	c.abandon(uid, errGone)
	c.dismiss(uid)
	c.leaveGroup(uid)
	delete(c.preemptions.leaving, uid)
	if p := c.cluster.Pod(uid); p != nil {
		n := p.Node
		c.cluster.RemovePod(uid)
		c.left(p, n, last)
	}
}

// seeNode takes in a node that the API shows.
func (c *Core) seeNode(node *v1.Node, old *v1.Node) {
	if c.options.Objects != nil {
		c.options.Objects.Node(node)
	}
	var before *cluster.Node
	if n := c.cluster.Node(node.Name); n != nil {
		was := *n
		before = &was
	}
	n := c.cluster.SetNode(node)
	c.nodeChanged(before, n, old, node)
}

// loseNode forgets a deleted node. Pods on their way to it return to the queue.
func (c *Core) loseNode(name string, last *v1.Node) {
	if c.options.Objects != nil {
		c.options.Objects.NodeGone(name)
	}
	n := c.cluster.Node(name)
	if n == nil {
		return
	}
	before := n.Copy(nil)
	nominated := slices.Clone(n.Nominated)
	for _, b := range c.placements.to(name) {
		c.withdraw(b, errNodeGone)
	}
	c.cluster.RemoveNode(name)
	for _, p := range nominated { // they are tried again, and go elsewhere or lose their nomination
		c.queue.Wake(p.UID, "NodeDelete", c.now)
	}
	c.conditions.news = true
	c.happened(queue.Event{Resource: queue.Node, Action: queue.Delete, Label: "NodeDelete", NodeBefore: before, Old: orNil(last)})
}
