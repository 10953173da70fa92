package simulate

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// What an API server and the controllers of volumes and claims do with the actions of the
// scheduling core. Live, the same actions are requests that take time and may fail; here each
// succeeds at once.

// carryOut carries out an action of the core as an API server and the controllers of volumes
// and claims would. It takes no time and always succeeds. Every action with a ticket is
// answered before carryOut returns.
func (s *scheduler) carryOut(action cycle.Action) {
	if s.standin.CarryOut(action) {
		return
	}

	switch a := action.(type) {
	case cycle.Bind:
		s.bindPod(a)
	case cycle.Remove:
		s.answerTicket(a.Ticket, cycle.Outcome{})
		// The answer first: the core is told that its request was accepted, and then sees the
		// victim change.
		s.preempt(a.Victim.UID, s.pending[a.For])

	case cycle.WriteStatus:
		if p := s.pending[a.Pod.UID]; p != nil && a.Nominate != nil {
			p.SetNominated(*a.Nominate)
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
		// The first panic is the one to report; later ones may be its consequences.
		if s.report.failed == nil {
			s.report.failed = fmt.Errorf("the decision of pod %s/%s panicked: %s\n%s", a.Pod.Namespace, a.Pod.Name, a.Value, a.Stack)
		}
	}
}

// answerTicket answers an action of the core.
func (s *scheduler) answerTicket(ticket cycle.Ticket, o cycle.Outcome) {
	s.feedEvent(cycle.Answered{Ticket: ticket, Outcome: o})
}

// bindPod gives a pod its node. The pod may have been deleted since the core decided; the
// binding is then answered, and has no effect.
func (s *scheduler) bindPod(a cycle.Bind) {
	p := s.pending[a.Attempt.Pod.UID]
	s.answerTicket(a.Ticket, cycle.Outcome{})
	if p == nil {
		return
	}
	// A pod whose object was released is bound as the core knows it.
	object := p.object
	if object == nil {
		object = a.Attempt.Pod
	}
	bound := *object
	bound.Spec.NodeName, bound.Status.NominatedNodeName = a.Attempt.Node, ""
	if p.object != nil {
		s.keepObject(p, &bound)
	}
	s.showObject(cycle.Pods, &bound)
	s.podBound(p)
}

// nameClaim notes in the pod's status which claim has its extended resources, as
// kube-scheduler writes it before it binds the pod.
func (s *scheduler) nameClaim(uid types.UID, status *v1.PodExtendedResourceClaimStatus) {
	if p := s.pending[uid]; p != nil && p.object != nil {
		object := *p.object
		object.Status.ExtendedResourceClaimStatus = status
		s.keepObject(p, &object)
	}
}

// keepObject replaces a pod's object. Where time may pass, the API has it, too.
func (s *scheduler) keepObject(p *pod, object *v1.Pod) {
	if p.object = object; s.lasting {
		s.api.Follow(object, false)
	}
}
