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

// Cost is what it costs to lose a node, in order of importance: compare looks at the first
// field that differs. A node that loses one bare pod costs more than one whose hundred pods
// move.
type Cost struct {
	Node string `json:"node"`
	// Lost counts the pods that no controller replaces, Blocked those whose budget does not allow
	// their disruption now, Pending those that would find no other node.
	Lost    int `json:"lost"`
	Blocked int `json:"blocked"`
	Pending int `json:"pending"`
	// Evicted counts the pods that would have to move; Priority is the sum of their priorities.
	Evicted  int   `json:"evicted"`
	Priority int64 `json:"priority"`
}

// compare orders the cheaper node first. Equal costs are ordered by name, so that the choice
// is the same in every run.
func (a *Cost) compare(b *Cost) int {
	return cmp.Or(
		cmp.Compare(a.Lost, b.Lost), cmp.Compare(a.Blocked, b.Blocked), cmp.Compare(a.Pending, b.Pending),
		cmp.Compare(a.Evicted, b.Evicted), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Node, b.Node),
	)
}

// ErrTooFew is the error when there are fewer nodes than are to be chosen. Choose wraps it
// with the numbers.
var ErrTooFew = errors.New("there are not as many nodes to choose from")

// Choose finds the nodes that cost least to lose, one after the other, each as if those
// before it were gone: of those that the drain selects, or of all if it selects none. It
// changes the world: the chosen nodes are drained, and time passes until that is over.
// Choosing one at a time is greedy: another set of as many nodes may be cheaper together.
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
	// Pods that are pending already take their room first, or they would be counted as
	// homeless.
	w.scheduler.trySettled()
	costs := costs{allowed: &w.allowed, scheduler: &w.scheduler, budgets: &w.budgets, pods: &w.pods, nodes: &w.nodes}
	candidates := make([]Cost, 0, len(names))
	for _, name := range names {
		if w.nodes.named[name].object.Spec.Unschedulable {
			continue // it is about to leave already
		}
		candidates = append(candidates, costs.lowerBound(name))
	}
	for len(chosen) < count && !w.allowed.mustStop() {
		if len(candidates) == 0 {
			return nil, nil, fmt.Errorf("%w that are not cordoned: %d of %d", ErrTooFew, count, len(names))
		}
		slices.SortFunc(candidates, func(a, b Cost) int { return a.compare(&b) })
		// The bounds are cheap for all candidates. What it really costs is found out for the
		// first ones only.
		best := costs.cheapestOf(candidates)
		chosen = append(chosen, candidates[best])
		op := *drain
		op.Nodes = Nodes{Node: candidates[best].Node}
		// What these flags would refuse is in the cost already, as Lost. The drain must not
		// stop there.
		op.Force, op.IgnoreDaemonSets, op.DeleteEmptyDirData = true, true, true
		done, err := w.operations.drainNodes(&op)
		if err != nil {
			return nil, nil, err
		}
		drains = append(drains, done.Drain)
		// Until the pods have moved, or the drain has given up: the next node is chosen in
		// the cluster that is left.
		w.AdvanceUntilQuiet(w.clock.now + drainPatience + drainRetry)
		candidates = slices.Delete(candidates, best, best+1)
		for i := range candidates { // pods have moved there
			candidates[i] = costs.lowerBound(candidates[i].Node)
		}
	}
	return chosen, drains, w.allowed.ended
}

// costs finds what it costs to lose nodes. It leaves everything as it is: what it tries in
// the cluster it takes back.
type costs struct {
	allowed   *allowed
	scheduler *scheduler
	budgets   *budgets
	pods      *pods
	nodes     *nodes
}

// cheapestOf returns the index of the candidate that actually costs least. The candidates are
// sorted by their bounds, which assume that no pod stays pending, so the search ends at a
// bound that does not undercut the best cost:
//
//	Lost     0 0 1 3
//	Pending  2 0 - -    the second costs least; the third cannot undercut it, and is not tried
func (k *costs) cheapestOf(candidates []Cost) int {
	const most = 64 // pods that fit nowhere else are rare; where they are not, the best of these will do
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

// lowerBound is a lower bound of what losing the node costs: everything but Pending, for
// which the scheduler has to be asked. Static pods and those of DaemonSets do not count, as
// in a drain.
func (k *costs) lowerBound(name string) Cost {
	c := Cost{Node: name}
	allowed := map[string]int32{}
	for _, cp := range k.scheduler.c.Node(name).Pods {
		p := k.pods.placed[cp.UID]
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
		if len(covering) > 1 { // the Eviction API refuses it whatever these allow
			c.Blocked++
			continue
		}
		for _, b := range covering {
			key := b.Namespace + "/" + b.Name
			// A budget with one disruption left blocks all of its pods here but the first.
			// Some of them could follow once that one is ready elsewhere; the drain finds
			// out.
			if allowed[key]++; allowed[key] > b.Status.DisruptionsAllowed {
				c.Blocked++
			}
		}
	}
	return c
}

// countHomeless counts the node's pods that would fit on no other node. The world is left as
// it was. All of them are taken away before the first is tried, and each that fits takes its
// new room: two pods that would fit in the same gap do not both count as moved. Nothing is
// preempted.
func (k *costs) countHomeless(name string) (count int) {
	m := k.nodes.named[name]
	// The node is only cordoned, as in a drain, and not removed.
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
	// Each is tried as a pod that its controller makes again: not nominated, and with a UID
	// of its own, because the other one is still known.
	for _, p := range moving {
		object := k.pods.placed[p.UID].object.DeepCopy()
		object.Spec.NodeName, object.UID, object.Status.NominatedNodeName = "", p.UID+"/moved", ""
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
