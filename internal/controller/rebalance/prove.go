// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// proof holds a successor's node, or the reason for refusing the move.
//
// This file answers the central question: if this pod is evicted, where does its successor land,
// and does that serve the policy? The scheduler's own decider finds the possible nodes, and
// judgeNode rates them. A move is refused if any possible node is not good enough, even an unlikely
// one.
type proof struct {
	node         *cluster.Node
	alternatives []*cluster.Node // as good as node
	// code is "" if the move is proved; then node is set.
	code    Code
	message string
}

// refuseMove returns a proof without a node, with the reason for not making the move.
func refuseMove(code Code, format string, args ...any) proof {
	return proof{code: code, message: fmt.Sprintf(format, args...)}
}

// requirements are a strategy's conditions for a move.
type requirements struct {
	gauge int // the index in world.gauges of the gauge that must go down
	// within is set if the move is part of an attempt, which is measured at its end. Until then the
	// gauge merely must not go up.
	within bool
	// least is the minimum reduction of the gauge; 0 means any reduction.
	least int64
	// renews accepts any node for the successor, including the pod's own node.
	renews bool
	// settled is the minimum time a node must have been ready before pods are moved to it.
	settled time.Duration
	// allowed limits the nodes that count as better; nil means no limit.
	allowed func(n *cluster.Node) bool
}

// anywhere holds the requirements of a pod that leaves regardless of its successor's node.
var anywhere = requirements{renews: true}

// proveMove decides the node of a pod's successor, both while the pod terminates and after its
// removal, and judges every possible node. A surge's replica is decided while the pod is still
// running.
func (w *world) proveMove(p *pod, is requirements) proof {
	if p.surge != nil {
		nodes, why := w.surges.nodesBeside(p, is)
		if why.code != "" {
			return why
		}
		return w.chooseNode(p, [][]*cluster.Node{nodes}, is)
	}
	s := w.schedulerOf(p)
	if s == nil {
		return refuseMove(Unproven, "no profile serves the scheduler name %q", p.Spec().SchedulerName)
	}

	// Three cases are possible: the successor is scheduled while the victim still holds its room,
	// after the victim's removal, or after pending pods have taken the freed room. leaving is nil
	// if the controller waits for the victim's end; behind is nil if no pending pod fits.
	var leaving, gone, behind []*cluster.Node
	var why proof
	w.withoutPod(p, func(next *pod, from *cluster.Node) {
		leaving, why = w.landingsOf(s, next, from, is)
	}, func(next *pod, from *cluster.Node) {
		if why.code == "" {
			gone, why = w.landingsOf(s, next, from, is)
		}
		if why.code == "" {
			behind, why = w.behindWaiting(s, next, from, is)
		}
	})

	if why.code != "" {
		return why
	}
	sets := [][]*cluster.Node{gone}
	for _, nodes := range [][]*cluster.Node{leaving, behind} {
		if nodes != nil {
			sets = append(sets, nodes)
		}
	}

	return w.chooseNode(p, sets, is)
}

// behindWaiting returns the possible nodes of the successor if pending pods that now fit are placed
// before it; nil without such pods. A pending pod may have a higher priority than the successor, or
// just be tried earlier.
func (w *world) behindWaiting(s *scheduler, next *pod, from *cluster.Node, is requirements) ([]*cluster.Node, proof) {
	arrived := len(w.arrivals)
	defer w.Undo(w.Mark())
	w.placeWaiting()
	if len(w.arrivals) == arrived {
		return nil, proof{}
	}
	first := w.arrivals[arrived]
	nodes, why := w.landingsOf(s, next, from, is)
	if why.code != "" {
		return nil, refuseMove(Unproven, "%s/%s, which is pending, may be placed before its successor, which then would "+
			"not land better", first.Namespace(), first.Name())
	}
	return nodes, proof{}
}

// landingsOf returns the possible nodes of the successor in the current cluster. If Decide returns
// the victim's node, the proof fails early: that node is among the best nodes, whatever the others
// are.
func (w *world) landingsOf(s *scheduler, next *pod, from *cluster.Node, is requirements) ([]*cluster.Node, proof) {
	switch d := s.decider.Decide(next.Pod); {
	case d.Err != nil:
		return nil, refuseMove(Unproven, "its successor cannot be judged: %v", d.Err)
	// Diagnose must immediately follow the decision it explains.
	case d.Node == nil:
		failure := s.decider.Diagnose(next.Pod)
		if (next.hasVolumes() || next.hasDevices()) &&
			slices.ContainsFunc(failure.Plugins, func(name string) bool { return s.objects[name] }) {
			return nil, refuseMove(VolumeBound, "%s", failure.Message(""))
		}
		return nil, refuseMove(NoBetterNode, "%s", failure.Message(""))
	// With Held, the room is reserved on another of the best nodes, so a tie with the victim's node
	// is harmless.
	case d.Node == from && !is.renews && w.options.Placing != Held:
		return nil, w.whyReturns(s, next, from, d.Feasible)
	case w.options.Placing == Sampled:
		return w.feasibleNodes(s, next)
	}

	// The scheduler may choose any of the equally good nodes.
	nodes, err := s.decider.Best(next.Pod)
	if err != nil || len(nodes) == 0 {
		return nil, refuseMove(Unproven, "its successor cannot be judged on every node")
	}
	return nodes, proof{}
}

// feasibleNodes returns the nodes that pass the filters. It evaluates every node, which costs more
// than a decision; it is needed if kube-scheduler samples nodes, because any feasible node may be
// the best of a sample.
func (w *world) feasibleNodes(s *scheduler, next *pod) (nodes []*cluster.Node, why proof) {
	e := s.decider.Plain().Evaluate(next.Pod)
	if e.Err != nil || e.Feasible == 0 {
		return nil, refuseMove(Unproven, "its successor cannot be judged on every node")
	}
	for i := range e.Nodes {
		if e.Nodes[i].Rejection == nil {
			nodes = append(nodes, e.Nodes[i].Node)
		}
	}
	return nodes, proof{}
}

// whyReturns explains why a successor would return to its node: either no other node can take it,
// or the scheduler ranks no other node above the old one. feasible counts the nodes that pass the
// filters.
func (w *world) whyReturns(s *scheduler, next *pod, from *cluster.Node, feasible int) proof {
	if feasible > 1 {
		return refuseMove(ReturnsToSameNode, "to the scheduler no node is better than %s", from.Name)
	}
	e := s.decider.Plain().Evaluate(next.Pod)
	if volume := s.boundBy(e, next, from); volume != "" {
		return refuseMove(VolumeBound, "%s", volume)
	}
	return refuseMove(NoBetterNode, "no other node can take it: %s", e.Message(""))
}

// boundBy returns a message about a node ruled out only by the pod's volumes or devices, or "". For
// such a pod the code NoBetterNode would be misleading: its volumes or devices, and not a lack of
// room, keep it on its node.
func (s *scheduler) boundBy(e *decide.Evaluation, next *pod, from *cluster.Node) string {
	for i := range e.Nodes {
		v := &e.Nodes[i]
		if v.Node != from && v.Rejection != nil && s.objects[v.Plugin] && (next.hasVolumes() || next.hasDevices()) {
			return fmt.Sprintf("%s could take it, but not its %s", v.Node.Name, next.namesHolds())
		}
	}
	return ""
}

// chooseNode judges the possible nodes of a successor, and picks the best of the nodes possible in
// every case.
//
//	leaving  {n1, n2}    possible nodes while the victim terminates
//	gone     {n2, n3}    possible nodes after its removal
//
// Here n1, n2 and n3 are all judged, and each must be good; only n2 can be the target, because it
// is in both sets. With Held a bad node is merely skipped: the scheduler is directed to the target.
func (w *world) chooseNode(p *pod, cases [][]*cluster.Node, is requirements) proof {
	type judged struct {
		n     *cluster.Node
		after []int64
	}
	var good []judged
	var seen []*cluster.Node
	var bad proof

	judge := &leaving{world: w, p: p, next: w.successorFor(p), from: p.Node}
	defer judge.undo()
	for _, n := range slices.Concat(cases...) {
		if slices.Contains(seen, n) {
			continue
		}
		seen = append(seen, n)
		after, why := judge.judgeNode(n, is)
		if why.code == "" {
			if !slices.ContainsFunc(cases, func(nodes []*cluster.Node) bool { return !slices.Contains(nodes, n) }) {
				good = append(good, judged{n, after})
			}
			continue
		}
		// The message names one bad node: the first by name, so that it does not change from plan
		// to plan.
		if bad.code == "" || n.Name < bad.node.Name {
			bad = why
			bad.node = n
		}
	}

	if bad.code != "" && w.options.Placing != Held || len(good) == 0 {
		bad.node = nil
		if bad.code == "" {
			return refuseMove(Unproven, "where it lands depends on when its successor is decided")
		}
		return bad
	}

	// The best node lowers the gauges most, in the policy's order; the scheduler's preference is
	// irrelevant, since it considers all of them equal.
	slices.SortFunc(good, func(a, b judged) int {
		return cmp.Or(slices.Compare(a.after, b.after), cmp.Compare(a.n.Name, b.n.Name))
	})
	found := proof{node: good[0].n, alternatives: rules.Mapped(good[1:], func(j judged) *cluster.Node { return j.n })}
	sortByName(found.alternatives)
	if w.options.Placing == Held {
		found.alternatives = nil
	}
	return found
}

// settling are the taints by which Karpenter and the cluster autoscaler announce that a node is
// about to be removed. Pods moved there would soon be disrupted again.
var settling = []string{"karpenter.sh/disrupted", "karpenter.sh/disruption", "ToBeDeletedByClusterAutoscaler",
	"DeletionCandidateOfClusterAutoscaler"}

// whyLeaving returns why a node is neither a source nor a target, or "". Its pods are the concern
// of the component removing it.
func (w *world) whyLeaving(n *cluster.Node) string {
	if n.Taints.Unschedulable {
		return "is cordoned"
	}
	if w.nodeObject(n).DeletionTimestamp != nil {
		return "is being deleted"
	}
	for i := range n.Taints.Taints {
		if slices.Contains(settling, n.Taints.Taints[i].Key) {
			return "is about to be removed (" + n.Taints.Taints[i].Key + ")"
		}
	}
	return ""
}

// whyUnfit returns why no pod is moved to a node, or "". It is stricter than the scheduler, which
// judges a node only by its taints: a node that has just become ready is open to pending pods, but
// no reason to disturb running ones.
func (w *world) whyUnfit(n *cluster.Node, settled time.Duration) string {
	if why := w.whyLeaving(n); why != "" {
		return why
	}
	switch c := w.readyCondition(n); {
	case c == nil:
	case c.Status != v1.ConditionTrue:
		return "is not ready"
	case !c.LastTransitionTime.IsZero() && w.now.Sub(c.LastTransitionTime.Time) < settled:
		return fmt.Sprintf("has been ready for %s, and %s are required",
			formatMinutes(w.now.Sub(c.LastTransitionTime.Time)), formatMinutes(settled))
	}
	return ""
}

// readyCondition returns the node's condition Ready, or nil if it is absent, as in manifests.
func (w *world) readyCondition(n *cluster.Node) *v1.NodeCondition {
	object := w.nodeObject(n)
	return rules.Find(object.Status.Conditions, func(c *v1.NodeCondition) bool { return c.Type == v1.NodeReady })
}

// isReady reports whether a node is ready. A node without the condition counts as ready.
func (w *world) isReady(n *cluster.Node) bool {
	c := w.readyCondition(n)
	return c == nil || c.Status == v1.ConditionTrue
}
