package simulate

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// carryOut carries out an action of the core as an API server and the controllers of volumes and
// claims would. It takes no time and always succeeds.
func (s *scheduler) carryOut(action cycle.Action) {
	if s.standin.CarryOut(action) {
		return
	}

	switch a := action.(type) {
	case cycle.Bind:
		s.bindPod(a)
	case cycle.Remove:
		s.answerTicket(a.Ticket, cycle.Outcome{})
		s.preempt(a.Victim.UID, s.pending[a.For])

	case cycle.WriteStatus:
		if p := s.pending[a.Pod.UID]; p != nil && a.Nominate != nil {
			p.Nominated = *a.Nominate
		}
		if a.Ticket != 0 {
			s.answerTicket(a.Ticket, cycle.Outcome{})
		}
	case cycle.WriteGroup:
		s.writeGroup(a)
	case cycle.Preflight:
		s.answerTicket(a.Ticket, cycle.Outcome{})
	case cycle.PreBind:
		s.answerTicket(a.Ticket, cycle.Outcome{})

	case cycle.Panicked:
		if s.report.failed == nil {
			s.report.failed = fmt.Errorf("the decision of pod %s/%s panicked: %s\n%s", a.Pod.Namespace, a.Pod.Name, a.Value, a.Stack)
		}
	}
}

func (s *scheduler) answerTicket(ticket cycle.Ticket, o cycle.Outcome) {
	s.feedEvent(cycle.Answered{Ticket: ticket, Outcome: o})
}

// bindPod gives a pod its node.
func (s *scheduler) bindPod(a cycle.Bind) {
	p := s.pending[a.Attempt.Pod.UID]
	s.answerTicket(a.Ticket, cycle.Outcome{})
	if p == nil {
		return
	}
	object := p.object
	if object == nil {
		object = a.Attempt.Pod
	}
	bound := *object
	bound.Spec.NodeName, bound.Status.NominatedNodeName = a.Attempt.Node, ""
	if p.object != nil {
		p.object = &bound
	}
	s.showObject(cycle.Pods, &bound)
	s.podBound(p)
}

// nameClaim notes in the pod's status which claim has its extended resources.
func (s *scheduler) nameClaim(uid types.UID, status *v1.PodExtendedResourceClaimStatus) {
	if p := s.pending[uid]; p != nil && p.object != nil {
		object := *p.object
		object.Status.ExtendedResourceClaimStatus = status
		p.object = &object
	}
}
