package rebalance

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Leaving says which nodes are to be drained. Its fields are kubectl's flags.
//
// This file answers what a drain would do now: which pods leave, in which order, where their
// successors land, and what refuses the drain. It is planned again whenever the cluster changes, so
// nothing in a Draining has to hold for long. Which pods kubectl would evict, ignore or refuse is
// decided by [disruption.DrainRules]; Berth adds where successors land, and what budgets allow
// together.
type Leaving struct {
	// Nodes are cordoned in the plan, whether or not they are yet.
	Nodes []string
	disruption.DrainRules
	// Delete deletes pods instead of evicting them, so that disruption budgets do not count.
	Delete bool
	// Grace overrides the pods' grace periods, in seconds.
	Grace *int64
	// Returned are successors that came back to a node that is drained. They stay.
	Returned map[types.UID]bool
	// Surge has pods leave once one more replica of their workload is ready, where that can be.
	Surge bool
	// Surging are pods whose workload has one more replica already.
	Surging map[types.UID]bool
	// Fitting has pods stay whose successors find no other node, or whose workloads lack room for
	// one more replica.
	Fitting bool
	// Begun is set once pods have been evicted. Before, a drain that cannot come to an end is
	// refused.
	Begun bool
}

// Draining is the plan of a drain. A pod of the nodes is in at most one of the lists. Pods that the
// drain's selector leaves out, and successors that came back, are in none.
type Draining struct {
	// Pods leave, in this order. Those that a budget does not allow to leave yet come last.
	Pods []Departure
	// Refused are pods for which kubectl drain refuses to begin, those that the Eviction API never
	// evicts, and those whose budget allows no disruption at all; Ignored stay.
	Refused, Ignored []Kept
	// Ending are being deleted already, and waited for. Later stay until there is more room.
	Ending, Later []Kept
}

// Departure is one pod that leaves. It is a copy of what the plan knows, and refers to nothing of
// the world.
type Departure struct {
	Namespace, Name string
	UID             types.UID
	Owner, From     string
	// To is where the successor lands, as far as that can be predicted. Or are the nodes that are
	// as good. To is empty if there is no successor, or no node for it.
	To string
	Or []string
	// Lost is set if no controller makes the pod again.
	Lost bool
	// Stranded is why the successor finds no other node, or "".
	Stranded string
	// Budget is the disruption budget that covers the pod, and Waits why it does not allow the pod
	// to leave yet, or "".
	Budget, Waits string
	Grace         int64 // seconds
	// Surge is set if one more replica comes first, NoSurge why it does not although it was asked
	// for.
	Surge   *Surge
	NoSurge string
}

// Kept is a pod that is not evicted, and why.
type Kept struct {
	Namespace, Name, Node string
	UID                   types.UID
	Why                   string
}

// Stranded counts the pods whose successors find no other node.
func (d *Draining) Stranded() (count int) {
	for i := range d.Pods {
		if d.Pods[i].Stranded != "" {
			count++
		}
	}
	return count
}

// PlanDrain decides where the successor of each pod on the nodes lands, one after the other, on the
// cluster as those before leave it. All of the nodes count as cordoned, and pods on them that are
// being deleted as gone. A successor lands on the best node that it fits on: unlike a move of a
// Plan, a departure does not have to improve anything.
//
// The order is the one that ends soonest. Pods that may leave at once come before those that wait
// for a budget. Within both, pods whose successors are made at once come before those of
// StatefulSets, whose successors are waited for; and the longest grace period comes first, because
// its time runs while others wait. If pods find no node in that order, the largest go first
// instead, provided that fewer are then without a node.
//
// The state is not changed. Without the flag Begun the plan is for showing and for refusing; with
// it, it is for carrying on.
func PlanDrain(state *State, leaving *Leaving, options Options) *Draining {
	if options.Placing == "" {
		options.Placing = Exact
	}
	// No goal is pursued, so the policy is empty: only the world is needed.
	w := openWorld(cordonNodes(state, leaving.Nodes), &Policy{}, options)
	plan, list, daemonSet := &Draining{}, []*pod(nil), daemonSetsOf(w.World)
	for _, object := range w.pods {
		if !slices.Contains(leaving.Nodes, object.Spec.NodeName) || leaving.Returned[object.UID] {
			continue
		}
		ruling := leaving.Judge(object, w.now, daemonSet)
		if !ruling.Leaves {
			plan.keepPod(object, ruling)
			continue
		}
		p := w.placed[object.UID]
		if p == nil { // it has ended: no successor is decided
			p = &pod{Pod: w.c.Pending(object), object: object}
		}
		// Its controller does not exist, so nothing comes in its place although it names one.
		p.orphan = ruling.Orphan
		if leaving.Surge && !leaving.Surging[object.UID] {
			if p.surge, p.noSurge, p.later = w.surges.surgeFor(p, leaving); p.surge != nil {
				// All replicas of the plan may exist at once: the next pod is planned with what is
				// left of the quota.
				w.surges.useQuota(p)
			}
		}
		// A roll opens more nodes for such pods before it evicts them without a replica.
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
		return cmp.Or(falseFirst(w.comesLate(a), w.comesLate(b)),
			cmp.Compare(leaving.graceOf(b.object), leaving.graceOf(a.object)), bySize(a, b))
	})
	// Who waits depends on the order, and the order on who waits: budgets are spent in the order of
	// speed, and those that got nothing go last.
	waits := w.budgetWaits(list, leaving)
	waitsLast := func(a, b *pod) int { return cmp.Compare(len(waits[a]), 0) - cmp.Compare(len(waits[b]), 0) }
	slices.SortStableFunc(list, waitsLast)
	// The two orders are tried on the same world, so the first one is undone before the second.
	mark := w.Mark()
	plan.Pods = w.planDepartures(list, leaving, waits)
	if plan.Stranded() > 0 {
		w.Undo(mark)
		slices.SortStableFunc(list, func(a, b *pod) int {
			return cmp.Or(waitsLast(a, b), falseFirst(w.comesLate(a), w.comesLate(b)), bySize(a, b))
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

// postponeStranded has the pods stay whose successors find no node. It is for rolls, which plan
// them again once nodes were opened.
func (d *Draining) postponeStranded() {
	d.Pods = slices.DeleteFunc(d.Pods, func(p Departure) bool {
		if p.Stranded != "" {
			d.Later = append(d.Later, Kept{Namespace: p.Namespace, Name: p.Name, Node: p.From, UID: p.UID, Why: p.Stranded})
		}
		return p.Stranded != ""
	})
}

// cordonNodes returns a state with these nodes cordoned. The taint is set as well, because the node
// controller would set it, and the scheduler's filters know a cordon by either.
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

// daemonSetsOf says which DaemonSets exist. A drain reads DaemonSets, so one that is not there does
// not exist: the answer is never Unknown.
func daemonSetsOf(w *objects.World) func(namespace, name string) disruption.Presence {
	return func(namespace, name string) disruption.Presence {
		if w.Workloads().Named(rules.DaemonSet, namespace, name) != nil {
			return disruption.There
		}
		return disruption.Gone
	}
}

// keepPod lists a pod that is not evicted.
func (d *Draining) keepPod(object *v1.Pod, ruling disruption.Ruling) {
	switch {
	case ruling.Fault != "":
		d.Refused = append(d.Refused, keptPod(object, ruling.Fault))
	case ruling.Ignored != "":
		d.Ignored = append(d.Ignored, keptPod(object, ruling.Ignored))
	case ruling.Waited:
		d.Ending = append(d.Ending, keptPod(object, ""))
	}
}

// keptPod describes a pod that is not evicted; why may be "" if there is nothing to explain.
func keptPod(object *v1.Pod, why string) Kept {
	return Kept{Namespace: object.Namespace, Name: object.Name, Node: object.Spec.NodeName, UID: object.UID, Why: why}
}

// whyNever returns why the Eviction API does not evict the pod however long the drain waits, or "".
// When it has begun, a budget may count a workload between a pod and its successor, and is waited
// for.
//
// kubectl drain waits for such a budget until its timeout, or forever. Berth says so before it
// cordons a node.
func (w *world) whyNever(p *pod, leaving *Leaving) string {
	verdict := w.protections.mayEvict(p)
	switch {
	case leaving.Delete, p.surge != nil, p.later:
	case verdict.Answer == disruption.Never:
		return fmt.Sprintf("cannot evict Pods: %s (%s)", verdict.Message, w.remedy(p, leaving))
	case verdict.Answer == disruption.Later && !leaving.Begun && disruption.Hopeless(verdict.Budget, w.countBare(verdict.Budget)):
		return fmt.Sprintf("cannot evict Pods: %s, all that it covers, and allows no disruption at all (%s)",
			verdict.Message, w.remedy(p, leaving))
	}
	return ""
}

// remedy is what helps where a budget never allows a pod to leave. It looks for a surge, so it is
// asked only where a message needs it.
func (w *world) remedy(p *pod, leaving *Leaving) string {
	if leaving.Surge {
		return "no replica before: " + p.noSurge + "; use --disable-eviction to override"
	}
	if surge, _, later := w.surges.surgeFor(p, leaving); surge != nil || later {
		return "use --surge to have one more replica first, or --disable-eviction to override"
	}
	return "use --disable-eviction to override"
}

// forgetLeaving removes pods that are being deleted from the nodes. A StatefulSet's successor is
// still to come; that of another controller exists already, and is placed like any pending pod.
func (w *world) forgetLeaving(nodes []string) {
	for _, p := range w.sortedPods() {
		if !p.Terminating || !slices.Contains(nodes, p.NodeName) {
			continue
		}
		// Its room has to be kept in the plan: the pods that leave next must not count on it.
		if found, _ := w.landingNodes(p); w.comesLate(p) && len(found) > 0 {
			w.movePod(p, found[0])
			continue
		}
		w.removePod(p)
	}
	w.placeWaiting()
}

// graceOf returns the grace period with which a pod leaves, in seconds. It may be 0, with which the
// pod is killed at once.
func (leaving *Leaving) graceOf(object *v1.Pod) int64 {
	switch {
	case leaving.Grace != nil:
		return *leaving.Grace
	case object.Spec.TerminationGracePeriodSeconds != nil:
		return *object.Spec.TerminationGracePeriodSeconds
	}
	return v1.DefaultTerminationGracePeriodSeconds
}
