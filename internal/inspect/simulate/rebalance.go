// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// Rebalance moves pods like berth rebalance --execute. The first plan is made at the start of the
// operation, and a new plan whenever a successor lands elsewhere or the moves of a plan are used
// up.
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

const (
	// landsWithin is the time within which a successor must have a node before the rebalance stops,
	// as in package execute.
	landsWithin = time.Minute
	// looksEvery is the interval between checks for the successor. On a live cluster, a watch
	// reports the successor.
	looksEvery = time.Second
	// mostElsewhere limits the number of consecutive successors landing elsewhere, as in package
	// execute. One may be chance; two mean that the plan mispredicts this cluster.
	mostElsewhere = 2
)

// moving is a rebalance in progress, which makes one move at a time. It is the loop of package
// execute in virtual time, where each wait is a call on the agenda:
//
//	plan -> close nodes -> evict one pod -> wait for its successor -> as planned: next move
//	                                                               -> elsewhere: new plan
//	                                                               -> no node: stop
type moving struct {
	clock       *clock
	allowed     *allowed
	pods        *pods
	nodes       *nodes
	controllers *controllers
	// state returns the cluster as berth rebalance would read it now. It lists all objects, so it
	// is called once per plan.
	state    func() *rebalance.State
	profiles []*plugins.Profile

	// done is the result. The operation has already returned it; it is completed as time passes.
	done   *Moved
	policy *rebalance.Policy
	// arrived holds the landed successors. New plans do not move them again.
	arrived map[types.UID]bool
	plan    *rebalance.Plan
	// next is the index of the plan's next move.
	next int
	// closed holds the nodes to which this rebalance has added the emptying taint. missed counts
	// the consecutive successors that landed elsewhere.
	closed map[string]bool
	missed int
	// spent is the part of the policy's limits used up by earlier moves, as input for later plans.
	spent rebalance.Spent
}

// rebalanceNodes begins a rebalance. Unparsable goals are an error.
func (o *operations) rebalanceNodes(op *Rebalance) (*Done, error) {
	policy, err := rebalance.ReadGoals(op.Goals, op.Namespace)
	if err != nil {
		return nil, err
	}
	m := &moving{
		clock: o.clock, allowed: o.allowed, pods: o.pods, nodes: o.nodes, controllers: o.controllers, profiles: o.options.Profiles,
		state: func() *rebalance.State {
			return &rebalance.State{AsOf: o.clock.time(), World: world.Open(o.listObjects())}
		},
		done: &Moved{}, policy: policy, arrived: map[types.UID]bool{}, closed: map[string]bool{},
	}
	o.scheduler.trySettled() // place pods that are already pending first
	m.makePlan()
	return &Done{Moved: m.done}, nil
}

// makePlan makes a plan for the current world and starts its first move. It first opens the nodes
// closed for the previous plan, because the new plan may close different nodes.
func (m *moving) makePlan() {
	if m.allowed.mustStop() {
		return
	}
	m.closeNodes(nil)
	m.plan = rebalance.Make(m.state(), m.policy,
		rebalance.Options{Profiles: m.profiles, Arrived: m.arrived, Spent: m.spent})
	m.next = 0
	m.makeMove()
}

// makeMove makes the next move of the plan, or ends after the last one. If the move's pod has left
// its node, the rest of the plan is void, and makeMove makes a new plan.
func (m *moving) makeMove() {
	if m.next == len(m.plan.Moves) {
		m.endPlan("")
		return
	}
	move := &m.plan.Moves[m.next]
	closed := slices.Clone(move.Closed)
	if move.Closes == rebalance.MakingRoom {
		closed = append(closed, move.From)
	}
	m.closeNodes(closed)
	p := m.pods.named[Name{move.Namespace, move.Name}]
	if p == nil || p.Pod == nil || p.NodeName != move.From || p.Terminating { // it has left, or is terminating
		m.makePlan()
		return
	}
	m.done.Moves++
	m.spent = m.spent.Plus(*move)
	m.controllers.departPod(p, ByRebalance, move.Cause)
	m.awaitSuccessor(move, m.controllers.departed[len(m.controllers.departed)-1], m.clock.now+landsWithin)
}

// awaitSuccessor waits for the successor of a move, and continues once the successor has a node. If
// no successor is expected, the next move follows after one interval.
func (m *moving) awaitSuccessor(move *rebalance.Move, d *Departure, until time.Duration) {
	m.clock.callAt(m.clock.now+looksEvery, func() {
		switch next := d.next; {
		case move.To == "" || next == nil: // no successor is expected
			m.next++
			m.makeMove()
		case next.NodeName == "" && m.clock.now < until:
			m.awaitSuccessor(move, d, until)
		case next.NodeName == "":
			m.endPlan(fmt.Sprintf("the successor %s/%s has no node", next.object.Namespace, next.object.Name))
		default:
			m.continuePlan(move, next)
		}
	})
}

// continuePlan continues with the plan if the successor is on the planned node, or on a node that
// the move lists as equivalent; otherwise it makes a new plan. It also makes a new plan after the
// last move, because the moves may have enabled more.
func (m *moving) continuePlan(move *rebalance.Move, next *pod) {
	m.arrived[next.UID] = true
	m.next++
	switch {
	case next.NodeName == move.To:
		m.missed = 0
		if m.next < len(m.plan.Moves) {
			m.makeMove()
			return
		}
	case slices.Contains(move.Or, next.NodeName):
		m.missed = 0
	default:
		m.missed++
		if m.done.Elsewhere++; m.missed >= mostElsewhere {
			m.endPlan(fmt.Sprintf("%d successors in a row did not land where planned", m.missed))
			return
		}
	}

	m.makePlan()
}

// endPlan ends the rebalance. If it made all moves, emptied nodes stay closed for later removal; if
// it stopped, it opens all nodes that still have pods.
func (m *moving) endPlan(stopped string) {
	m.done.Stopped, m.done.Stays = stopped, m.plan.Stays
	var empties []string
	if stopped == "" {
		empties = m.plan.Empties
	}
	m.closeNodes(empties)
	for name := range m.closed {
		if m.nodes.named[name] != nil { // not removed meanwhile
			m.done.Empties = append(m.done.Empties, name)
		}
	}
	slices.Sort(m.done.Empties)
}

// closeNodes adds the emptying taint to the wanted nodes, and removes it from the other nodes
// closed by this rebalance. It does not open empty nodes, because the scheduler would fill them
// again.
func (m *moving) closeNodes(wanted []string) {
	taint := v1.Taint{Key: rebalance.EmptyingTaint, Effect: v1.TaintEffectNoSchedule}
	for _, name := range slices.Sorted(maps.Keys(m.closed)) { // in a fixed order, because opening a node requeues pods
		if !slices.Contains(wanted, name) && m.nodes.named[name] != nil && m.pods.hasMovable(name) {
			delete(m.closed, name)
			m.nodes.changeNode(name, func(n *v1.Node) {
				n.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t v1.Taint) bool { return t.MatchTaint(&taint) })
			})
		}
	}
	for _, name := range wanted {
		if !m.closed[name] && m.nodes.named[name] != nil {
			m.closed[name] = true
			m.nodes.changeNode(name, func(n *v1.Node) { n.Spec.Taints = append(slices.Clone(n.Spec.Taints), taint) })
		}
	}
}

// hasMovable reports whether the node has a pod that could run elsewhere, neither a DaemonSet pod
// nor a static pod.
func (s *pods) hasMovable(node string) bool {
	return slices.ContainsFunc(s.podsOn(node), func(p *pod) bool {
		kind := rules.ControllerKind(p.object)
		return p.object.Annotations[v1.MirrorPodAnnotationKey] == "" && kind != rules.DaemonSet && kind != rules.Node
	})
}

// listObjects returns the cluster's current API objects, without refused and ended pods.
func (o *operations) listObjects() (list []metav1.Object) {
	for object := range o.scheduler.api.Objects() {
		if _, is := object.(*v1.Pod); !is {
			list = append(list, object)
		}
	}
	for _, f := range o.scheduler.allFound(o.pods) {
		if f.Pod != nil && f.Refused == "" {
			list = append(list, f.Object)
		}
	}
	return list
}
