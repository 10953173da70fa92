package simulate

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// pendingInOrder lists the pending pods that may be tried, in the order in which they will be.
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

// untilTurn tries the pods that are ahead of this one in the queue, and leaves all others pending:
// all if it is nil.
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

// tryAlone tries a pod that does not preempt. If it does not fit, it is removed again.
func (s *scheduler) tryAlone(p *pod) (stops string, reasons map[string]int) {
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
	if failure := s.core.Decider(p.Spec().SchedulerName).Diagnose(p.Pod); len(failure.Reasons) > 0 || failure.Rejection != nil {
		return failure.Message(""), failure.Reasons
	}
	return p.refusal, nil
}
