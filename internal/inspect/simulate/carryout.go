// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// Actions of the scheduling core, carried out on behalf of an API server and the volume and claim
// controllers. In a live cluster, these actions are requests that take time and may fail; here each
// succeeds immediately.

// carryOut carries out an action of the core. The action always succeeds, except that volumes of
// stalled classes are not provisioned. Every ticket is resolved before carryOut returns.
func (s *scheduler) carryOut(action cycle.Action) {
	if s.controllers.CarryOut(action) {
		return
	}

	switch a := action.(type) {
	case cycle.Bind:
		s.bindPod(a)
	case cycle.Remove:
		s.answerTicket(a.Ticket, cycle.Outcome{})
		// Delete the victim after the outcome was reported: the core must receive the outcome
		// before the victim's update.
		s.reactions.controllers.preemptPod(a.Victim.UID, s.pending[a.For])

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
		// Report the first panic; later ones may be its consequences.
		if s.report.failed == nil {
			s.report.failed = fmt.Errorf("the decision of pod %s/%s panicked: %s\n%s", a.Pod.Namespace, a.Pod.Name, a.Value, a.Stack)
		}
	}
}

// answerTicket reports the outcome of an action to the core.
func (s *scheduler) answerTicket(ticket cycle.Ticket, o cycle.Outcome) {
	s.feedEvent(cycle.Answered{Ticket: ticket, Outcome: o})
}

// bindPod assigns a node to a pod. If the pod was deleted since the core's decision, bindPod only
// resolves the ticket.
func (s *scheduler) bindPod(a cycle.Bind) {
	p := s.pending[a.Attempt.Pod.UID]
	s.answerTicket(a.Ticket, cycle.Outcome{})
	if p == nil {
		return
	}
	// If a pod's object was released, bind the core's version.
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

// nameClaim records the claim for extended resources in the pod's status, like kube-scheduler
// before binding.
func (s *scheduler) nameClaim(uid types.UID, status *v1.PodExtendedResourceClaimStatus) {
	if p := s.pending[uid]; p != nil && p.object != nil {
		object := *p.object
		object.Status.ExtendedResourceClaimStatus = status
		s.keepObject(p, &object)
	}
}

// keepObject replaces a pod's object, in the API as well if time may pass.
func (s *scheduler) keepObject(p *pod, object *v1.Pod) {
	if p.object = object; s.lasting {
		s.follow(object, false)
	}
}
