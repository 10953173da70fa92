// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Leaving selects the nodes to drain, and holds the options and the progress of the drain.
//
// This file computes the current effect of a drain: the pods that leave, their order, the nodes of
// their successors, and the reasons for refusing the drain. The plan is renewed whenever the
// cluster changes, so a Draining is short-lived. [disruption.DrainRules] decides which pods kubectl
// would evict, ignore or refuse; Berth adds the nodes of successors, and the evictions that budgets
// allow together.
type Leaving struct {
	// Nodes are treated as cordoned by the plan, even before they are.
	Nodes []string
	// Only, if set, selects the pods to leave, on any node, instead of all pods of Nodes.
	Only map[types.UID]bool
	disruption.DrainRules
	// Delete deletes pods instead of evicting them, which bypasses disruption budgets.
	Delete bool
	// Grace overrides the pods' grace periods, in seconds.
	Grace *int64
	// Returned holds the successors that were scheduled to a drained node again. They stay.
	Returned map[types.UID]bool
	// Surge makes pods leave only once one more replica of their workload is ready, where possible.
	Surge bool
	// Surging holds the pods with a surge in progress: their workloads already have one more
	// replica.
	Surging map[types.UID]bool
	// Placed holds the pods that leave without a surge.
	Placed map[types.UID]bool
	// Fitting keeps pods in place if their successors find no other node, or if their workloads
	// lack room for one more replica.
	Fitting bool
	// Begun is set once pods have been evicted. Until then, a drain that cannot finish is refused.
	Begun bool
	// Targets, if set, has the intended nodes of the successors, as far as they fit there.
	Targets plugins.Targets
}

// Draining is the plan of a drain. A pod of the nodes is in at most one of the lists. Pods excluded
// by the drain's selector, and returned successors, are in none.
type Draining struct {
	// Pods leave, in this order. Pods still held back by a budget are last.
	Pods []Departure
	// Refused holds the pods for which kubectl drain refuses to begin, pods never evicted by the
	// Eviction API, and pods under a budget that can never allow a disruption; Ignored pods stay.
	Refused, Ignored []Kept
	// Ending pods are already terminating; the drain waits for them. Later pods stay until more
	// room is available.
	Ending, Later []Kept
}

// Departure is one pod that leaves. It is a copy of the plan's data, and does not refer to the
// world.
type Departure struct {
	Namespace, Name string
	UID             types.UID
	Owner, From     string
	// To is the successor's node, as far as predictable, and Or lists equally good nodes. To is
	// empty if the pod has no successor, or the successor has no node.
	To string
	Or []string
	// Lost is set if no controller recreates the pod. Fails is the reason if departures of the plan
	// fail its Job, or its index of the Job: "Job/etl fails: backoffLimit 0".
	Lost  bool
	Fails string
	// Stranded is the reason why the successor finds no other node, or "".
	Stranded string
	// Budget is the disruption budget covering the pod, or "". Waits is the reason why the pod must
	// not leave yet, or "".
	Budget, Waits string
	// Held is set if the pod stays in Terminating, because its node is silent. Controllers that
	// wait for its end create no successor meanwhile.
	Held  bool
	Grace int64 // seconds
	// Surge is set if one more replica is started first; NoSurge is the reason a requested surge is
	// omitted.
	Surge   *Surge
	NoSurge string
}

// Kept is a pod that is not evicted, with the reason. Held and NoSurge are as in Departure.
type Kept struct {
	Namespace, Name, Node string
	UID                   types.UID
	Why, NoSurge          string
	Held                  bool
}

// Stranded counts the pods without another node for their successors.
func (d *Draining) Stranded() int {
	return rules.Count(slices.Values(d.Pods), func(p Departure) bool { return p.Stranded != "" })
}

// PlanDrain decides the successor's node for each pod on the nodes, in turn, on the cluster left by
// the preceding departures. All of the nodes count as cordoned, and their terminating pods as
// removed. A successor lands on the best node that fits: unlike a move of a Plan, a departure need
// not improve anything.
//
// The order is chosen to finish the drain as early as possible. Pods free to leave precede pods
// waiting for a budget. In both groups, pods with immediate successors precede StatefulSet pods,
// whose successors must be awaited. Among otherwise equal pods, the longest grace period is first,
// because it elapses while other pods wait. If some pods find no node in that order, an order by
// size is used instead, provided that fewer pods then lack a node.
//
// The state is not changed. Without the flag Begun the plan is for display and for refusing the
// drain; with it, the plan is for execution.
func PlanDrain(state *State, leaving *Leaving, options Options) *Draining {
	options.Placing = cmp.Or(options.Placing, Exact)
	if leaving.Targets != nil {
		options.Profiles = slices.Clone(options.Profiles)
		for i, p := range options.Profiles {
			toward := *p
			toward.Targets = leaving.Targets
			options.Profiles[i] = &toward
		}
	}
	// A drain pursues no goal, so the policy is empty: only the world is needed.
	w := openWorld(cordonNodes(state, leaving.Nodes), &Policy{}, options)
	plan, list, daemonSet := &Draining{}, []*pod(nil), daemonSetsOf(w.World)
	for _, object := range w.pods {
		if !leaving.selects(object) {
			continue
		}
		ruling := leaving.Judge(object, w.now, daemonSet)
		if !ruling.Leaves {
			plan.keepPod(object, ruling, w.holdsPods(object.Spec.NodeName))
			continue
		}
		p := w.placed[object.UID]
		if p == nil { // a terminal pod has no successor to decide
			p = &pod{Pod: w.c.Pending(object), object: object}
		}
		// The controller named by an orphan does not exist, so nothing replaces the pod.
		p.orphan = ruling.Orphan
		if leaving.Surge && !leaving.Surging[object.UID] && !leaving.Placed[object.UID] {
			if p.surging = w.surges.surgeFor(p, leaving); p.surge != nil {
				// All additional replicas of the plan may exist simultaneously: the next pod is
				// planned with the rest of the quota.
				w.surges.useQuota(p)
			}
		}
		// A roll opens more nodes for cramped pods before it evicts them without a surge.
		if leaving.Fitting && p.cramped {
			plan.Later = append(plan.Later, keptPod(object, p.noSurge))
			continue
		}
		if why := w.whyNever(p, leaving); why != "" {
			plan.Refused = append(plan.Refused, keptPod(object, why))
			continue
		}
		list = append(list, p)
	}
	w.forgetLeaving(leaving.Nodes)
	slices.SortStableFunc(list, func(a, b *pod) int {
		return cmp.Or(rules.FalseFirst(w.comesLate(a), w.comesLate(b)),
			cmp.Compare(leaving.graceOf(b.object), leaving.graceOf(a.object)), bySize(a, b))
	})
	// Budgets are spent in this order. Then the pods that must wait for a budget are moved to the
	// end.
	waits := w.budgetWaits(list, leaving)
	waitsLast := func(a, b *pod) int { return cmp.Compare(len(waits[a]), 0) - cmp.Compare(len(waits[b]), 0) }
	slices.SortStableFunc(list, waitsLast)
	// The two orders are tried on the same world, so the first one is undone before the second.
	mark := w.Mark()
	plan.Pods = w.planDepartures(list, leaving, waits)
	if plan.Stranded() > 0 {
		w.Undo(mark)
		slices.SortStableFunc(list, func(a, b *pod) int {
			return cmp.Or(waitsLast(a, b), rules.FalseFirst(w.comesLate(a), w.comesLate(b)), bySize(a, b))
		})
		largest := &Draining{}
		if largest.Pods = w.planDepartures(list, leaving, waits); largest.Stranded() < plan.Stranded() {
			plan.Pods = largest.Pods
		}
	}
	if leaving.Fitting {
		plan.postponeStranded()
	}
	return plan
}

// selects reports whether the drain concerns a pod.
func (leaving *Leaving) selects(object *v1.Pod) bool {
	if leaving.Only != nil {
		return leaving.Only[object.UID] && object.Spec.NodeName != ""
	}
	return slices.Contains(leaving.Nodes, object.Spec.NodeName) && !leaving.Returned[object.UID]
}

// postponeStranded keeps pods in place if their successors find no node. Rolls plan these pods
// again after opening nodes.
func (d *Draining) postponeStranded() {
	d.Pods = slices.DeleteFunc(d.Pods, func(p Departure) bool {
		if p.Stranded != "" {
			d.Later = append(d.Later, Kept{Namespace: p.Namespace, Name: p.Name, Node: p.From, UID: p.UID,
				Why: p.Stranded, NoSurge: p.NoSurge})
		}
		return p.Stranded != ""
	})
}

// cordonNodes returns a state with these nodes cordoned. The taint is set as well, because the node
// controller would set it, and the scheduler's filters recognize a cordon by either.
func cordonNodes(state *State, names []string) *State {
	state = state.fork()
	for _, name := range names {
		n := state.node(name)
		if n == nil {
			continue
		}
		n = n.DeepCopy()
		n.Spec.Unschedulable = true
		taint := v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.MatchTaint(&taint) }) {
			n.Spec.Taints = append(n.Spec.Taints, taint)
		}
		state.World.Put(n)
	}
	return state
}

// daemonSetsOf returns a lookup of DaemonSets. A drain reads all DaemonSets, so an absent one does
// not exist: the result is never Unknown.
func daemonSetsOf(w *objects.World) func(namespace, name string) disruption.Presence {
	return func(namespace, name string) disruption.Presence {
		if w.Workloads().Named(rules.DaemonSet, namespace, name) != nil {
			return disruption.There
		}
		return disruption.Gone
	}
}

// holdsPods reports whether pods deleted from a node stay on it.
func (w *world) holdsPods(node string) bool {
	n, there := objects.Get[*v1.Node](w.World, "", node)
	return there && disruption.HoldsPods(n)
}

// keepPod records that a pod is not evicted.
func (d *Draining) keepPod(object *v1.Pod, ruling disruption.Ruling, held bool) {
	switch {
	case ruling.Fault != "":
		d.Refused = append(d.Refused, keptPod(object, ruling.Fault))
	case ruling.Ignored != "":
		d.Ignored = append(d.Ignored, keptPod(object, ruling.Ignored))
	case ruling.Waited:
		k := keptPod(object, "")
		k.Held = held
		d.Ending = append(d.Ending, k)
	}
}

// keptPod describes a pod that is not evicted; why may be "" if no explanation is needed.
func keptPod(object *v1.Pod, why string) Kept {
	return Kept{Namespace: object.Namespace, Name: object.Name, Node: object.Spec.NodeName, UID: object.UID, Why: why}
}

// whyNever returns why the Eviction API does not evict the pod however long the drain waits, or "".
// After the drain has begun, a budget may allow nothing until the successor of an evicted pod is
// ready. The drain waits for such a budget.
//
// kubectl drain waits until its timeout, or forever, for a budget that never allows an eviction.
// Berth reports such a budget before cordoning a node.
func (w *world) whyNever(p *pod, leaving *Leaving) string {
	switch verdict := w.protections.mayEvict(p); {
	case leaving.Delete, p.surge != nil, p.later:
	case verdict.Answer == disruption.Never:
		return fmt.Sprintf("cannot evict Pods: %s (%s)", verdict.Message, w.remedy(p, leaving))
	case verdict.Answer == disruption.Later && !leaving.Begun && disruption.Hopeless(verdict.Budget, w.countBare(verdict.Budget)):
		return fmt.Sprintf("cannot evict Pods: %s, all that it covers, and allows no disruption at all (%s)",
			verdict.Message, w.remedy(p, leaving))
	}
	return ""
}

// remedy returns advice for a budget that never allows a pod to leave. It searches for a surge, so
// it is called only when a message needs it.
func (w *world) remedy(p *pod, leaving *Leaving) string {
	if leaving.Surge {
		return "cannot surge: " + p.noSurge + "; use --disable-eviction to override"
	}
	if could := w.surges.surgeFor(p, leaving); could.surge != nil || could.later {
		return "use --surge to have one more replica first, or --disable-eviction to override"
	}
	return "use --disable-eviction to override"
}

// forgetLeaving removes terminating pods from the nodes. A StatefulSet's successor does not exist
// yet. Any other controller's successor exists, and is placed like any pending pod.
func (w *world) forgetLeaving(nodes []string) {
	for _, p := range w.sortedPods() {
		if !p.Terminating || !slices.Contains(nodes, p.NodeName) {
			continue
		}
		// The plan must keep the successor's room: later departures must not use it.
		if found, _ := w.landingNodes(p); w.comesLate(p) && !w.holdsPods(p.NodeName) && len(found) > 0 {
			w.movePod(p, found[0])
			continue
		}
		w.removePod(p)
	}
	w.placeWaiting()
}

// graceOf returns the pod's effective grace period, in seconds. With 0 the pod is killed
// immediately.
func (leaving *Leaving) graceOf(object *v1.Pod) int64 {
	return ptr.Deref(cmp.Or(leaving.Grace, object.Spec.TerminationGracePeriodSeconds), v1.DefaultTerminationGracePeriodSeconds)
}
