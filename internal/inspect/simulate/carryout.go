package simulate

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// carryOut carries out an action of the core as an API server and the controllers of volumes and
// claims would. It takes no time and always succeeds.
func (w *World) carryOut(action cycle.Action) {
	if w.standin.CarryOut(action) {
		return
	}
	switch a := action.(type) {
	case cycle.Bind:
		w.bind(a)
	case cycle.Remove:
		w.preempt(a)
	case cycle.WriteStatus:
		if p := w.pending[a.Pod.UID]; p != nil && a.Nominate != nil {
			p.Nominated = *a.Nominate
		}
		if a.Ticket != 0 {
			w.answer(a.Ticket, cycle.Outcome{})
		}
	case cycle.WriteGroup:
		w.writeGroup(a)
	case cycle.Preflight:
		w.answer(a.Ticket, cycle.Outcome{})
	case cycle.PreBind:
		w.answer(a.Ticket, cycle.Outcome{})
	case cycle.Panicked:
		if w.failed == nil {
			w.failed = fmt.Errorf("the decision of pod %s/%s panicked: %s\n%s", a.Pod.Namespace, a.Pod.Name, a.Value, a.Stack)
		}
	}
}

func (w *World) answer(ticket cycle.Ticket, o cycle.Outcome) {
	w.feed(cycle.Answered{Ticket: ticket, Outcome: o})
}

// bind gives a pod its node.
func (w *World) bind(a cycle.Bind) {
	p := w.pending[a.Attempt.Pod.UID]
	w.answer(a.Ticket, cycle.Outcome{})
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
	w.show(cycle.Pods, &bound)
	w.landed(p)
}

// preempt deletes a victim: with its grace period in a world where time passes, and otherwise at
// once.
func (w *World) preempt(a cycle.Remove) {
	w.answer(a.Ticket, cycle.Outcome{})
	detail := ""
	if p := w.pending[a.For]; p != nil {
		detail = p.Namespace() + "/" + p.Name
	}
	switch victim, p := w.placed[a.Victim.UID], w.c.Pod(a.Victim.UID); {
	case p == nil:
	case victim != nil && w.lasting:
		w.dismiss(victim, ByPreemption, detail)
	default:
		if victim == nil || !victim.unready {
			w.budgetsLeft(p) // it counts as terminating already
		}
		w.remove(p)
	}
}

// nameClaim notes in the pod's status which claim has its extended resources.
func (w *World) nameClaim(uid types.UID, status *v1.PodExtendedResourceClaimStatus) {
	if p := w.pending[uid]; p != nil && p.object != nil {
		object := *p.object
		object.Status.ExtendedResourceClaimStatus = status
		p.object = &object
	}
}
