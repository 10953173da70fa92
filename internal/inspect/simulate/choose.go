// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Cost is the cost of losing a node, with fields in order of importance: compare decides by the
// first difference. Losing one bare pod costs more than moving a hundred pods.
type Cost struct {
	Node string `json:"node"`
	// Lost counts the pods without a controller to replace them, Blocked counts the pods with an
	// exhausted disruption budget, and Pending counts the pods that would fit on no other node.
	Lost    int `json:"lost"`
	Blocked int `json:"blocked"`
	Pending int `json:"pending"`
	// Evicted counts the pods that would move; Priority is the sum of their priorities.
	Evicted  int   `json:"evicted"`
	Priority int64 `json:"priority"`
}

// compare orders the cheaper node first. Equal costs are ordered by name, so the choice is the same
// in every run.
func (a *Cost) compare(b *Cost) int {
	return cmp.Or(
		cmp.Compare(a.Lost, b.Lost), cmp.Compare(a.Blocked, b.Blocked), cmp.Compare(a.Pending, b.Pending),
		cmp.Compare(a.Evicted, b.Evicted), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Node, b.Node),
	)
}

// ErrTooFew reports fewer candidate nodes than requested. Choose wraps it with the numbers.
var ErrTooFew = errors.New("there are not as many nodes to choose from")

// Choose finds the cheapest nodes to lose among those selected by the drain, or among all nodes if
// it selects none. It chooses them one after the other, each under the assumption that the earlier
// ones are lost. It changes the world: the chosen nodes are drained, and time passes until the
// drain is over. Choosing one node at a time is greedy: another set of the same size may be cheaper
// overall.
func (w *World) Choose(count int, drain *Drain) (chosen []Cost, drains []*Drained, err error) {
	names := w.nodes.names()
	if drain.Selector != "" {
		if names, err = drain.resolveNames(&w.nodes); err != nil {
			return nil, nil, err
		}
	}
	if count < 1 || count > len(names) {
		return nil, nil, fmt.Errorf("%w: %d of %d", ErrTooFew, count, len(names))
	}
	// Place the pods that are already pending first, because they would take room needed by the
	// moved pods later.
	w.scheduler.trySettled()
	costs := costs{w}
	candidates := make([]Cost, 0, len(names))
	for _, name := range names {
		if w.nodes.named[name].object.Spec.Unschedulable {
			continue // a cordoned node is no candidate
		}
		candidates = append(candidates, costs.lowerBound(name))
	}
	for len(chosen) < count && !w.allowed.mustStop() {
		if len(candidates) == 0 {
			return nil, nil, fmt.Errorf("%w that are not cordoned: %d of %d", ErrTooFew, count, len(names))
		}
		slices.SortFunc(candidates, func(a, b Cost) int { return a.compare(&b) })
		// The bounds are cheap and cover all candidates; the exact cost is computed only for the
		// first ones.
		best := costs.cheapestOf(candidates)
		chosen = append(chosen, candidates[best])
		op := *drain
		op.Nodes = Nodes{Node: candidates[best].Node}
		// Without these flags, the drain would refuse nodes with bare pods, DaemonSet pods or pods
		// with emptyDir volumes. The cost of a node already counts bare pods as Lost.
		op.Force, op.IgnoreDaemonSets, op.DeleteEmptyDirData = true, true, true
		done, err := w.operations.drainNodes(&op)
		if err != nil {
			return nil, nil, err
		}
		drains = append(drains, done.Drain)
		// Advance until the pods have moved or the drain has given up, so that the next node is
		// chosen in the resulting cluster.
		w.AdvanceUntilQuiet(w.clock.now + drainPatience + drainRetry)
		candidates = slices.Delete(candidates, best, best+1)
		for i := range candidates { // the drain moved pods to the remaining candidates
			candidates[i] = costs.lowerBound(candidates[i].Node)
		}
	}
	return chosen, drains, w.allowed.ended
}

// costs computes the cost of losing nodes. It reverts every trial in the cluster.
type costs struct{ *World }

// cheapestOf returns the index of the candidate with the lowest actual cost. The candidates are
// sorted by their lower bounds, which assume that all pods find other nodes. The search ends at the
// first bound that is not below the best cost:
//
//	Lost     0 0 1 3
//	Pending  2 0 - -    the second costs least; the third cannot undercut it, and is not tried
func (k costs) cheapestOf(candidates []Cost) int {
	const most = 64 // maximum number of candidates with an exact cost; among more, the best of these is good enough
	best := -1
	for i := range candidates[:min(most, len(candidates))] {
		if best >= 0 && (candidates[best].compare(&candidates[i]) <= 0 || k.allowed.mustStop()) {
			break
		}
		candidates[i].Pending = k.countHomeless(candidates[i].Node)
		if best < 0 || candidates[i].compare(&candidates[best]) < 0 {
			best = i
		}
	}
	return best
}

// lowerBound returns a lower bound of the cost of losing the node: every field except Pending,
// which requires scheduling. Like a drain, it ignores static pods and DaemonSet pods.
func (k costs) lowerBound(name string) Cost {
	c := Cost{Node: name}
	allowed := map[string]int32{}
	for _, cp := range k.scheduler.c.Node(name).Pods {
		p := k.pods.placed[cp.UID()]
		if p == nil || p.Terminating {
			continue
		}
		owner := metav1.GetControllerOfNoCopy(p.object)
		if isMirror(p.object) || rules.KindOf(owner) == rules.DaemonSet {
			continue
		}
		c.Evicted++
		c.Priority += int64(p.Class.Priority)
		if owner == nil {
			c.Lost++
		}
		covering := k.budgets.budgetsOf(p.Class)
		if len(covering) > 1 { // the Eviction API refuses a pod with several budgets, whatever they allow
			c.Blocked++
			continue
		}
		for _, b := range covering {
			key := b.Namespace + "/" + b.Name
			// A budget with one remaining disruption blocks all of its pods here but the first.
			// Some of them could follow once the first is ready elsewhere; only the drain
			// determines that.
			if allowed[key]++; allowed[key] > b.Status.DisruptionsAllowed {
				c.Blocked++
			}
		}
	}
	return c
}

// countHomeless counts the pods of a node that would fit on no other node. It tries the replaceable
// pods one after the other, and reverts all changes.
func (k costs) countHomeless(name string) (count int) {
	m := k.nodes.named[name]
	// As in a drain, the node is only cordoned, not removed.
	cordoned := m.object.DeepCopy()
	cordoned.Spec.Unschedulable = true
	api := k.scheduler.api
	defer api.Undo(api.Mark())
	api.Put(cordoned)
	var moving []*cluster.Pod

	for _, p := range k.pods.podsOn(name) {
		succession := workload.SuccessionOf(metav1.GetControllerOfNoCopy(p.object), nil)
		if succession != workload.None && rules.ControllerKind(p.object) != rules.DaemonSet && !p.Terminating {
			moving = append(moving, p.Pod)
		}
	}

	for _, p := range moving {
		api.Remove(p)
	}
	// Each is tried like a pod recreated by its controller: without a nomination, and with a new
	// UID.
	for _, p := range moving {
		object := k.pods.placed[p.UID()].object.DeepCopy()
		object.Spec.NodeName, object.UID, object.Status.NominatedNodeName = "", p.UID()+"/moved", ""
		guest := k.scheduler.c.Pending(object)
		decider := k.scheduler.core.Decider(object.Spec.SchedulerName)
		if decider == nil {
			count++
			continue
		}
		if d := decider.Decide(guest); d.Node != nil {
			api.Place(object, guest, d.Node)
		} else {
			count++
		}
	}
	return count
}
