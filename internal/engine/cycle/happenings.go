package cycle

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// happenings are events that the queue has not been told yet.
type happenings struct{ events []queue.Event }

// happened notes an event that may help pending pods. If no pod could be waiting for it, it is
// dropped.
func (c *Core) happened(e queue.Event) {
	if c.listening() {
		c.news.events = append(c.news.events, e)
	}
}

func (c *Core) listening() bool {
	return c.preemptions.rescuing || c.queue.Len(queue.Waiting)+c.queue.Len(queue.Gated)+len(c.placements.held) > 0
}

// wake tells the queue the events since the last time.
func (c *Core) wake() {
	c.keepNoRoom()
	for i := range c.news.events {
		c.queue.Happened(&c.news.events[i], c.now)
	}
	clear(c.news.events)
	c.news.events = c.news.events[:0]
}

// came notes that a pod now takes room on its node.
func (c *Core) came(p *cluster.Pod, object *v1.Pod) {
	if c.listening() {
		c.happened(queue.Event{
			Resource: queue.Pod, Action: queue.Add, Label: "AssignedPodAdd", Pod: p, Node: p.Node, New: c.podObject(p, object),
		})
	}
}

// left notes that a pod no longer takes, or claims, room on a node.
func (c *Core) left(p *cluster.Pod, n *cluster.Node, object *v1.Pod) {
	if !c.listening() && (n == nil || len(n.Nominated) == 0) {
		return
	}
	c.happened(queue.Event{
		Resource: queue.Pod, Action: queue.Delete, Label: "AssignedPodDelete", PodBefore: p, Node: n, Old: c.podObject(p, object),
	})
	if n != nil { // preemptors nominated to this node waited for exactly this: no back-off
		for _, waiting := range n.Nominated {
			c.queue.Activate(waiting.UID, c.now)
		}
	}
}

// changedPlaced notes that a placed pod has changed in something that matters. The objects may be
// nil.
func (c *Core) changedPlaced(was *cluster.Pod, at *cluster.Node, p *cluster.Pod, old, object *v1.Pod) {
	if was.NodeName != p.NodeName {
		c.left(was, at, nil)
		c.came(p, object)
		return
	}
	var actions queue.Action
	if !maps.Equal(was.Class.Labels, p.Class.Labels) {
		actions |= queue.UpdatePodLabel
	}
	if takesLess(&was.Class.Requests, &p.Class.Requests) {
		actions |= queue.UpdatePodScaleDown
	}
	if c.outside && old != nil && object != nil {
		actions |= changes(old, object, true)
	}
	if actions == 0 || was.Terminating != p.Terminating {
		actions = queue.Update
	}
	c.happened(queue.Event{
		Resource: queue.Pod, Action: actions, Label: "AssignedPodUpdate", PodBefore: was, Pod: p, Node: p.Node,
		Old: c.podObject(was, old), New: c.podObject(p, object),
	})
}

func takesLess(was, is *cluster.Resources) bool {
	if is.MilliCPU < was.MilliCPU || is.Memory < was.Memory || is.EphemeralStorage < was.EphemeralStorage {
		return true
	}
	for name, amount := range was.Scalars {
		if is.Scalars[name] < amount {
			return true
		}
	}
	return false
}

// podObject is what out-of-tree plugins see of a pod: the API object or, if that is not kept, what
// the cluster model knows.
func (c *Core) podObject(p *cluster.Pod, object *v1.Pod) any {
	switch {
	case object != nil:
		return object
	case c.outside:
		return p.Object()
	}
	return nil
}

// nodeChanged notes what is new about a node.
func (c *Core) nodeChanged(before, n *cluster.Node, old, object *v1.Node) {
	e := queue.Event{Resource: queue.Node, Label: "NodeAdd", Action: queue.Add, NodeBefore: before, Node: n, New: object}
	if before != nil {
		e.Action, e.Label = nodeActions(before, n), "NodeUpdate"
		if c.outside {
			e.Action |= otherNodeActions(old, object)
			e.Old = orNil(old)
			if old == nil {
				e.Old = before.Object()
			}
		}
	} else {
		c.conditions.news = true
	}
	if e.Action != 0 {
		c.happened(e)
	}
}

func nodeActions(was, is *cluster.Node) (actions queue.Action) {
	if was.Labels != is.Labels || was.Hostname != is.Hostname || was.HasHostname != is.HasHostname {
		actions |= queue.UpdateNodeLabel
	}
	if was.Taints != is.Taints {
		actions |= queue.UpdateNodeTaint
	}
	if was.Size != is.Size {
		actions |= queue.UpdateNodeAllocatable
	}
	if was.Features != is.Features {
		actions |= queue.UpdateNodeDeclaredFeature
	}
	return actions
}

// otherNodeActions are the changes that only out-of-tree plugins can be interested in.
func otherNodeActions(old, is *v1.Node) (actions queue.Action) {
	if old == nil {
		return queue.UpdateNodeCondition | queue.UpdateNodeAnnotation
	}
	if !maps.Equal(old.Annotations, is.Annotations) {
		actions |= queue.UpdateNodeAnnotation
	}
	if !maps.Equal(statuses(old), statuses(is)) {
		actions |= queue.UpdateNodeCondition
	}
	return actions
}

func statuses(n *v1.Node) map[v1.NodeConditionType]v1.ConditionStatus {
	all := map[v1.NodeConditionType]v1.ConditionStatus{}
	for _, is := range n.Status.Conditions {
		all[is.Type] = is.Status
	}
	return all
}

// orNil returns nil for a nil pointer, instead of an interface that holds one.
func orNil[T any, P interface {
	*T
	metav1.Object
}](object P) any {
	if object == nil {
		return nil
	}
	return object
}
