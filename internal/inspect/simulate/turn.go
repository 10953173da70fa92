// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Attempts for selected pods. A request about a pod first tries the pods ahead of it in the queue,
// so that it sees the cluster at the pod's turn; tryAlone tries a pod that is not in the queue yet.

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
		s.answerTicket(a.Ticket)
		// Delete the victim after the outcome was reported: the core must receive the outcome
		// before the victim's update.
		s.reactions.controllers.preemptPod(a.Victim.UID, s.pending[a.For])

	case cycle.WriteStatus:
		if p := s.pending[a.Pod.UID]; p != nil && a.Nominate != nil {
			p.SetNominated(*a.Nominate)
		}
		if a.Ticket != 0 {
			s.answerTicket(a.Ticket)
		}
	case cycle.WriteGroup:
		g := a.Group.DeepCopy() // the core holds the original
		meta.SetStatusCondition(&g.Status.Conditions, a.Condition)
		s.showChanged(cycle.PodGroups, g)
	case cycle.Preflight:
		s.answerTicket(a.Ticket)
	case cycle.PreBind:
		s.answerTicket(a.Ticket)

	case cycle.Panicked:
		// Report the first panic; later ones may be its consequences.
		s.report.failed = cmp.Or(s.report.failed,
			fmt.Errorf("the decision of pod %s/%s panicked: %s\n%s", a.Pod.Namespace, a.Pod.Name, a.Value, a.Stack))
	}
}

// answerTicket reports the success of an action to the core.
func (s *scheduler) answerTicket(ticket cycle.Ticket) { s.feedEvent(cycle.Answered{Ticket: ticket}) }

// bindPod assigns a node to a pod. If the pod was deleted since the core's decision, bindPod only
// resolves the ticket.
func (s *scheduler) bindPod(a cycle.Bind) {
	p := s.pending[a.Attempt.Pod.UID]
	s.answerTicket(a.Ticket)
	if p == nil {
		return
	}
	// If a pod's object was released, bind the core's version.
	bound := *cmp.Or(p.object, a.Attempt.Pod)
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

// eachWaiting yields the pods in created, late and pending. Those in pending are in no particular
// order.
func (s *scheduler) eachWaiting(yield func(p *pod) bool) {
	for _, p := range slices.Concat(s.created, s.late) {
		if !yield(p) {
			return
		}
	}
	for _, p := range s.pending {
		if !yield(p) {
			return
		}
	}
}

// showCreated shows new pods to the core, in queue order. A refused pod, or a pod without a
// profile, only gets a turn, because the core could not process it.
func (s *scheduler) showCreated() {
	created := s.created
	s.created = nil
	slices.SortFunc(created, compareQueued)
	for _, p := range created {
		p.turn = len(s.turn) + 1
		s.turn = append(s.turn, p)
		fresh := p.fresh
		p.fresh = nil
		if p.refused != "" || s.profiles[p.Spec().SchedulerName] == nil {
			continue
		}
		s.pending[p.UID()] = p
		s.showObject(cycle.Pods, fresh)
	}
}

// listUntried lists the pods that are not tried, up to the given turn: the API server refuses them,
// no profile serves them, or a gate holds them back. Each is listed once, at the position that a
// decision about it would have. The pods of an incomplete group are listed together.
func (s *scheduler) listUntried(turn int) {
	for ; s.passed < turn; s.passed++ {
		p := s.turn[s.passed]
		if p.gone || p.NodeName != "" || p.listed {
			continue
		}
		why, nodes := s.whyUntried(p)
		switch g := s.groupOf(p.Pod); {
		case why == "":
		case g != nil && why == s.core.Incomplete(p.UID()):
			s.listHeld(g, why)
		default:
			s.report.addDecision(p, Pod{Message: why, Nodes: nodes}, false)
		}
	}
}

// whyUntried returns the reason the pod is not tried, or "" if it is. With explanations, a pod
// gated by a plugin also gets the verdicts on the nodes, which show whether it would fit without
// the gate.
func (s *scheduler) whyUntried(p *pod) (why string, nodes []Node) {
	name := p.Spec().SchedulerName
	switch profile := s.profiles[name]; {
	case p.refused != "":
		return p.refused, nil
	case profile == nil:
		return fmt.Sprintf("no profile serves the scheduler name %q", name), nil
	}
	why = s.gateReason(p.Pod)
	if why != "" && len(p.Spec().SchedulingGates) == 0 {
		nodes = s.explainPod(name, p.Pod)
	}
	return why, nodes
}

// stubPod returns an object with only the fields needed for a deletion, because the full object may
// have been released.
func stubPod(p *cluster.Pod) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace(), Name: p.Name(), UID: p.UID()}}
}

// gateReason returns the reason the pod may not be tried yet, or "" if it may: scheduling gates,
// other plugins at PreEnqueue, missing device claims, or an incomplete group, in this order. A pod
// without a profile has no gates.
func (s *scheduler) gateReason(p *cluster.Pod) string {
	profile := s.profiles[p.Spec().SchedulerName]
	if profile == nil {
		return ""
	}
	for _, gate := range profile.Gates {
		if message := gate.Admit(p); message != "" {
			return message
		}
	}
	// The gate of the plugin for device claims needs the cluster, so the profile's Gates omit it.
	for _, filter := range profile.Filters {
		if devices, ok := filter.(*plugins.DynamicResources); ok && profile.Has(plugins.PreEnqueue, devices.Name()) {
			if message := devices.PreEnqueue(s.c, p); message != "" {
				return message
			}
		}
	}
	return s.core.Incomplete(p.UID())
}
