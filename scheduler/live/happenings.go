package live

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/queue"
)

// happened notes an event for the pods that wait. Where none does, it is nobody's.
func (s *Scheduler) happened(e queue.Event) {
	if s.listening() {
		s.happenings = append(s.happenings, e)
	}
}

func (s *Scheduler) listening() bool {
	return s.rescuing || s.queue.Len(queue.Waiting)+s.queue.Len(queue.Gated)+s.held > 0
}

// wake wakes whom the events since the last time can help.
func (s *Scheduler) wake() {
	if len(s.happenings) == 0 {
		return
	}
	now := time.Now()
	for i := range s.happenings {
		s.queue.Happened(&s.happenings[i], now)
	}
	clear(s.happenings)
	s.happenings = s.happenings[:0]
}

// came says that a pod has its place now.
func (s *Scheduler) came(p *cluster.Pod, object *v1.Pod) {
	if s.listening() {
		s.happened(queue.Event{
			Resource: queue.Pod, Action: queue.Add, Label: "AssignedPodAdd", Pod: p, Node: p.Node, New: s.podObject(p, object),
		})
	}
}

// left says that a pod no longer takes room on a node, or no longer claims it.
func (s *Scheduler) left(p *cluster.Pod, n *cluster.Node, object *v1.Pod) {
	if !s.listening() && (n == nil || len(n.Nominated) == 0) {
		return
	}
	s.happened(queue.Event{
		Resource: queue.Pod, Action: queue.Delete, Label: "AssignedPodDelete", PodBefore: p, Node: n, Old: s.podObject(p, object),
	})
	if n != nil { // those that had others leave this very node need not back off: it is what they wait for
		for _, waiting := range n.Nominated {
			s.queue.Activate(waiting.UID, time.Now())
		}
	}
}

// changedPlaced says that a pod that has its place is another one in something that matters.
func (s *Scheduler) changedPlaced(was *cluster.Pod, at *cluster.Node, p *cluster.Pod, object *v1.Pod) {
	if was.NodeName != p.NodeName {
		s.left(was, at, nil)
		s.came(p, object)
		return
	}
	var actions queue.Action
	if !maps.Equal(was.Class.Labels, p.Class.Labels) {
		actions |= queue.UpdatePodLabel
	}
	if takesLess(&was.Class.Requests, &p.Class.Requests) {
		actions |= queue.UpdatePodScaleDown
	}
	if actions == 0 || was.Terminating != p.Terminating {
		actions = queue.Update
	}
	s.happened(queue.Event{
		Resource: queue.Pod, Action: actions, Label: "AssignedPodUpdate", PodBefore: was, Pod: p, Node: p.Node,
		Old: s.podObject(was, nil), New: s.podObject(p, object),
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

// podObject is what plugins from outside see of a pod: the object, or if there is none what is left of it.
func (s *Scheduler) podObject(p *cluster.Pod, object *v1.Pod) any {
	switch {
	case object != nil:
		return object
	case s.outside:
		return p.Object()
	}
	return nil
}

// nodeChanged says what of a node is new.
func (s *Scheduler) nodeChanged(before, n *cluster.Node, old, object *v1.Node) {
	e := queue.Event{Resource: queue.Node, Label: "NodeAdd", Action: queue.Add, NodeBefore: before, Node: n, New: object}
	if before != nil {
		e.Action, e.Label = nodeActions(before, n), "NodeUpdate"
		if s.outside {
			e.Action |= otherNodeActions(old, object)
			e.Old = orNil(old)
			if old == nil {
				e.Old = before.Object()
			}
		}
	} else {
		s.conditionNews = true
	}
	if e.Action != 0 {
		s.happened(e)
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

// otherNodeActions are those that only plugins from outside ask about.
func otherNodeActions(old, is *v1.Node) (actions queue.Action) {
	if old == nil {
		return queue.UpdateNodeCondition | queue.UpdateNodeAnnotation
	}
	if !maps.Equal(old.Annotations, is.Annotations) {
		actions |= queue.UpdateNodeAnnotation
	}
	if !maps.Equal(conditions(old), conditions(is)) {
		actions |= queue.UpdateNodeCondition
	}
	return actions
}

func conditions(n *v1.Node) map[v1.NodeConditionType]v1.ConditionStatus {
	all := map[v1.NodeConditionType]v1.ConditionStatus{}
	for _, c := range n.Status.Conditions {
		all[c.Type] = c.Status
	}
	return all
}

// orNil turns a nil pointer into a nil.
func orNil[T any, P interface {
	*T
	metav1.Object
}](object P) any {
	if object == nil {
		return nil
	}
	return object
}
