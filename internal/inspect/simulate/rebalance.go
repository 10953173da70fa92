// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Rebalance moves pods like berth rebalance --execute, one at a time. Each move is the first move
// of a new plan.
type Rebalance struct {
	// Goals are the goals of berth rebalance, the most important first.
	Goals     []string `json:"goals,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
}

// Moved is the outcome of a rebalance.
type Moved struct {
	Moves int `json:"moves"`
	// Elsewhere counts the successors that did not land on a node proved by the plan.
	Elsewhere int `json:"elsewhere,omitempty"`
	// Empties lists the nodes that were emptied and stay closed.
	Empties []string `json:"empties,omitempty"`
	// Stays lists the pods that the goals would move but that stay.
	Stays []rebalance.Stay `json:"stays,omitempty"`
	// Stopped is the reason the rebalance ended early; empty if it made all moves.
	Stopped string `json:"stopped,omitempty"`
}

// seenWithin is the time until a rebalance observes a change: a watch has some delay.
const seenWithin = time.Second

// rebalances carries out the requests of rebalances in progress. Each has a core, which is the core
// of berth rebalance --execute. Its requests succeed immediately, except for evictions refused by
// budgets.
type rebalances struct {
	*controllers
	profiles []*plugins.Profile
	running  []*moving
	kept     string // reservation for a successor; "" without one
	guard    *guarding
}

// moving is a rebalance in progress.
type moving struct {
	core interface {
		Step(now time.Time, event execute.Event) []execute.Action
		Wake() (at time.Time, ok bool)
	}
	policy *rebalance.Policy
	// done is the result. The operation has already returned it; it is completed as time passes. It
	// is nil for the guard.
	done   *Moved
	closed map[string]bool // nodes with the emptying taint of this rebalance
	// inbox holds the changes of objects not observed yet, and pods those of pods, which the core
	// observes last: a pod may make the core plan, and budgets must be up to date then.
	inbox, pods []execute.Event
}

// rebalanceNodes begins a rebalance. Unparsable goals are an error.
func (o *operations) rebalanceNodes(op *Rebalance) (*Done, error) {
	policy, err := rebalance.ReadGoals(op.Goals, op.Namespace)
	if err != nil {
		return nil, err
	}
	o.scheduler.trySettled() // place pods that are already pending first
	m := &moving{core: execute.New(execute.Options{}), policy: policy, done: &Moved{}, closed: map[string]bool{}}
	o.rebalances.begin(m)
	return &Done{Moved: m.done}, nil
}

// begin shows all objects to a core.
func (r *rebalances) begin(m *moving) {
	r.running = append(r.running, m)
	for object := range r.scheduler.api.Objects() {
		r.step(m, r.eventsOf(object, false)...)
	}
	r.step(m, execute.Listed{})
}

// isBusy reports whether a rebalance is in progress.
func (r *rebalances) isBusy() bool {
	return slices.ContainsFunc(r.running, func(m *moving) bool { return m.done != nil })
}

// follow shows the current state of an object, or its deletion, to the cores after seenWithin.
func (r *rebalances) follow(object metav1.Object, gone bool) {
	for _, m := range r.running {
		if len(m.inbox)+len(m.pods) == 0 {
			r.clock.callAt(r.clock.now+seenWithin, func() {
				events := append(m.inbox, m.pods...)
				m.inbox, m.pods = nil, nil
				r.step(m, events...)
			})
		}
		if _, is := object.(*v1.Pod); is {
			m.pods = append(m.pods, r.eventsOf(object, gone)...)
		} else {
			m.inbox = append(m.inbox, r.eventsOf(object, gone)...)
		}
	}
}

// eventsOf returns the event by which a watch shows an object. There is none for a refused or an
// ended pod. A placed pod is shown with the condition that its kubelet would report.
func (r *rebalances) eventsOf(object metav1.Object, gone bool) []execute.Event {
	if gone {
		return []execute.Event{execute.Gone{Object: object}}
	}
	if object, is := object.(*v1.Pod); is {
		p := r.pods.named[Name{object.Namespace, object.Name}]
		if p == nil || p.Pod == nil || p.refused != "" {
			return nil
		}
		ready := v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue}
		if p.unready {
			ready.Status = v1.ConditionFalse
		}

		if object.Spec.NodeName != "" {
			shown := *object
			if !p.unready {
				shown.Status.Phase = v1.PodRunning
			}
			shown.Status.Conditions = append(slices.DeleteFunc(slices.Clone(object.Status.Conditions),
				func(c v1.PodCondition) bool { return c.Type == v1.PodReady }), ready)
			return []execute.Event{execute.Seen{Object: &shown}}
		}
	}
	return []execute.Event{execute.Seen{Object: object}}
}

// nextDue returns the time of the next call of a core; ok is false if there is none.
func (r *rebalances) nextDue() (at time.Duration, ok bool) {
	for _, m := range r.running {
		if wake, wakes := m.core.Wake(); wakes && (!ok || wake.Sub(r.clock.start) < at) {
			at, ok = wake.Sub(r.clock.start), true
		}
	}
	return max(at, r.clock.now), ok
}

// runDue calls the cores that are due.
func (r *rebalances) runDue() {
	for _, m := range slices.Clone(r.running) {
		if wake, wakes := m.core.Wake(); wakes && !wake.After(r.clock.time()) {
			r.step(m, execute.Tick{})
		}
	}
}

// step applies events to a core, and then the responses to its requests. The effects of a request
// wait in the inbox.
func (r *rebalances) step(m *moving, events ...execute.Event) {
	for ; len(events) > 0 && !r.allowed.mustStop(); events = events[1:] {
		for _, action := range m.core.Step(r.clock.time(), events[0]) {
			if answer := r.carryOut(m, action); answer != nil {
				events = append(events, answer)
			}
		}
	}
}

// carryOut carries out an action of a core, and returns the response to a request.
func (r *rebalances) carryOut(m *moving, action execute.Action) execute.Event {
	switch a := action.(type) {
	case execute.Recall:
		return execute.Recalled{}
	case execute.MakePlan:
		a.Options.Profiles = r.profiles
		return execute.Planned{Plan: rebalance.Make(a.State, m.policy, a.Options)}
	case execute.Note:
		return execute.Answered{Ticket: a.Ticket}
	case execute.SetTaint:
		return execute.Answered{Ticket: a.Ticket, Outcome: r.setTaint(m, a)}
	case execute.Evict:
		return r.evict(m, a)

	case execute.ReleaseReservations:
		if r.kept == a.Reservations.Text() {
			r.reserve("")
		}
	case execute.MoveProgress:
		if a.Result == execute.Elsewhere {
			m.done.Elsewhere++
		}
	case execute.Done:
		r.end(m, a)
	default:
		return r.carryOutGuard(action)
	}
	return nil
}

// setTaint sets or removes the emptying taint of a node.
func (r *rebalances) setTaint(m *moving, a execute.SetTaint) response.Outcome {
	if r.nodes.named[a.Node] == nil {
		return response.Gone
	}
	m.closed[a.Node] = a.Value != ""
	r.nodes.changeNode(a.Node, func(n *v1.Node) {
		n.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t v1.Taint) bool { return t.Key == rebalance.EmptyingTaint })
		if a.Value != "" {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: rebalance.EmptyingTaint, Value: a.Value, Effect: v1.TaintEffectNoSchedule})
		}
	})
	return response.OK
}

// evict reserves room for the successor of a pod, and evicts the pod if budgets allow it.
func (r *rebalances) evict(m *moving, a execute.Evict) execute.Event {
	p, answer := r.pods.placed[a.UID], execute.Answered{Ticket: a.Ticket}
	if p == nil {
		answer.Outcome = response.Gone
		return answer
	}

	r.reserve(a.Reservations.Text())
	switch verdict := r.budgets.mayEvict(p); {
	case p.Terminating:
	case verdict.Answer == disruption.Later:
		answer.Outcome, answer.Message = response.Busy, verdict.Message
	case verdict.Answer == disruption.Never:
		answer.Outcome, answer.Message = response.Failed, verdict.Message
	case m.done == nil:
		r.controllers.departPod(p, ByDrain, p.NodeName)
	default:
		m.done.Moves++
		r.controllers.departPod(p, ByRebalance, a.Reservations[len(a.Reservations)-1].Cause)
	}
	return answer
}

// reserve makes the scheduler reserve room for successors. The reservations replace any earlier
// ones; an empty text reserves none.
func (r *rebalances) reserve(text string) {
	r.kept = text
	r.scheduler.showObject(cycle.MoveLeases, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: cycle.MoveLeaseNamespace, Name: cycle.MoveLeaseName, Annotations: map[string]string{cycle.MoveReservationAnnotation: text},
	}})
}

// end completes the result of a rebalance.
func (r *rebalances) end(m *moving, a execute.Done) {
	r.running = slices.DeleteFunc(r.running, func(o *moving) bool { return o == m })
	m.done.Stopped = a.Stopped
	if a.Plan != nil {
		m.done.Stays = a.Plan.Stays
	}
	for _, name := range slices.Sorted(maps.Keys(m.closed)) {
		if m.closed[name] && r.nodes.named[name] != nil { // not removed meanwhile
			m.done.Empties = append(m.done.Empties, name)
		}
	}
}
