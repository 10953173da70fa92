package simulate

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// How single pods are tried out of order: those ahead of one pod in the queue, so that a
// question about that pod sees the cluster that it will see, and one pod that is not in the
// queue at all.

// pendingInOrder lists the pending pods that may be tried, in the order in which they will
// be. Gated pods are left out.
func (s *scheduler) pendingInOrder() []*cluster.Pod {
	var pods []*pod
	for _, p := range s.pending {
		if s.gateReason(p.Pod) == "" {
			pods = append(pods, p)
		}
	}
	sortQueued(pods)
	list := make([]*cluster.Pod, len(pods))
	for i, p := range pods {
		list[i] = p.Pod
	}
	return list
}

// untilTurn tries the pods that are ahead of this one in the queue, and leaves all others
// pending: all if it is nil. It stops at the group of the pod, which is decided together with
// it, and when the core has no pod that may be tried now.
func (s *scheduler) untilTurn(p *pod) {
	s.showCreated()
	for p != nil && !s.allowed.mustStop() {
		item := s.core.View().Queue.Next(s.clock.time())
		if item == nil {
			return
		}
		next := s.pending[item.Pod.UID]
		if next == nil || next == p || compareQueued(p, next) < 0 || s.groupOf(p.Pod).SharesTree(s.groupOf(next.Pod)) {
			return
		}
		s.feedEvent(cycle.Tick{})
	}
}

// tryAlone tries a pod that does not preempt. If it does not fit, it is removed again, and
// stops says why in the words of the FailedScheduling event; reasons counts the nodes by it.
// stops is empty if the pod has a node. Callers settle the world first: other pods that may
// be tried now would be tried as well.
func (s *scheduler) tryAlone(p *pod) (stops string, reasons map[string]int) {
	// Without preemption: the question is what fits, not what could be driven out.
	modest := *p.object
	modest.Spec.PreemptionPolicy = ptr.To(v1.PreemptNever)
	s.addPending(p, &modest)
	p.quiet = true
	s.showCreated()
	if message := s.gateReason(p.Pod); message != "" {
		s.withdrawPod(p)
		return message, nil
	}

	for p.NodeName == "" && p.refusal == "" && !s.allowed.mustStop() && s.isAwake() {
		s.feedEvent(cycle.Tick{})
	}
	if p.NodeName != "" {
		return "", nil
	}

	s.withdrawPod(p)
	// The decision may have looked at some nodes only, or taken the verdict of a pod like it.
	// The diagnosis is about all nodes.
	if failure := s.core.Decider(p.Spec().SchedulerName).Diagnose(p.Pod); len(failure.Reasons) > 0 || failure.Rejection != nil {
		return failure.Message(""), failure.Reasons
	}
	return p.refusal, nil
}
