// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// Attempts for selected pods. A request about a pod first tries the pods ahead of it in the queue,
// so that it sees the cluster at the pod's turn; tryAlone tries a pod that is not in the queue yet.

// pendingInOrder lists the pending pods eligible for a try, in queue order, without gated pods.
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

// untilTurn tries the pods ahead of p in the queue, and leaves the rest pending. If p is nil, it
// tries none. It also stops at the pod's group, which is decided as a whole, and when the queue has
// no further pod to try now.
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

// tryAlone tries a pod without preemption. If the pod does not fit, tryAlone removes it again,
// returns the reason in the words of the FailedScheduling event as stops, and counts the nodes by
// reason. stops is empty if the pod has a node. Callers must settle the world first, because other
// pending pods would be tried as well.
func (s *scheduler) tryAlone(p *pod) (stops string, reasons map[string]int) {
	// Do not preempt: the request concerns free room, not room occupied by possible victims.
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
	// The decision may have examined only some nodes, or reused the verdict of a similar pod. The
	// diagnosis covers all nodes.
	if failure := s.core.Decider(p.Spec().SchedulerName).Diagnose(p.Pod); len(failure.Reasons) > 0 || failure.Rejection != nil {
		return failure.Message(""), failure.Reasons
	}
	return p.refusal, nil
}
