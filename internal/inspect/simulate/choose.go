package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Cost is what it costs to lose a node, in order of importance.
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

func (a *Cost) compare(b *Cost) int {
	return cmp.Or(
		cmp.Compare(a.Lost, b.Lost), cmp.Compare(a.Blocked, b.Blocked), cmp.Compare(a.Pending, b.Pending),
		cmp.Compare(a.Evicted, b.Evicted), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Node, b.Node),
	)
}

// ErrTooFew is the error when there are fewer nodes than are to be chosen.
var ErrTooFew = errors.New("there are not as many nodes to choose from")

// Choose finds the nodes that cost least to lose, one after the other, each as if those before it
// were gone: of those that the drain selects, or of all if it selects none. It changes the world:
// the chosen nodes are drained.
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
		best := costs.cheapestOf(candidates)
		chosen = append(chosen, candidates[best])
		op := *drain
		op.Nodes = Nodes{Node: candidates[best].Node}
		op.Force, op.IgnoreDaemonSets, op.DeleteEmptyDirData = true, true, true
		done, err := w.operations.drainNodes(&op)
		if err != nil {
			return nil, nil, err
		}
		drains = append(drains, done.Drain)
		w.AdvanceUntilQuiet(w.clock.now + drainPatience + drainRetry)
		candidates = slices.Delete(candidates, best, best+1)
		for i := range candidates { // pods have moved there
			candidates[i] = costs.lowerBound(candidates[i].Node)
		}
	}
	return chosen, drains, w.allowed.ended
}

// costs finds what it costs to lose nodes. It leaves everything as it is.
type costs struct {
	allowed   *allowed
	scheduler *scheduler
	budgets   *budgets
	pods      *pods
	nodes     *nodes
}

// cheapestOf returns the index of the candidate that actually costs least. The candidates are
// sorted by their bounds, which assume that no pod stays pending, so the search ends at a bound
// that does not undercut the best cost.
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

// lowerBound is a lower bound of what losing the node costs.
func (k *costs) lowerBound(name string) Cost {
	c := Cost{Node: name}
	allowed := map[string]int32{}
	for _, cp := range k.scheduler.c.Node(name).Pods {
		p := k.pods.placed[cp.UID]
		if p == nil || p.Terminating {
			continue
		}
		owner := metav1.GetControllerOfNoCopy(p.object)
		if _, mirror := p.object.Annotations[v1.MirrorPodAnnotationKey]; mirror || rules.KindOf(owner) == rules.DaemonSet {
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
			if allowed[key]++; allowed[key] > b.Status.DisruptionsAllowed {
				c.Blocked++
			}
		}
	}
	return c
}

// countHomeless counts the node's pods that would fit on no other node. The world is left as it
// was.
func (k *costs) countHomeless(name string) (count int) {
	m, n := k.nodes.named[name], k.scheduler.c.Node(name)
	cordoned := m.object.DeepCopy()
	cordoned.Spec.Unschedulable = true
	k.scheduler.c.SetNode(cordoned)
	var moving, moved []*cluster.Pod

	for _, p := range k.pods.podsOn(name) {
		succession := workload.SuccessionOf(metav1.GetControllerOfNoCopy(p.object), nil)
		if succession != workload.None && rules.ControllerKind(p.object) != rules.DaemonSet && !p.Terminating {
			moving = append(moving, p.Pod)
		}
	}

	for _, p := range moving {
		k.scheduler.c.RemovePod(p.UID)
	}
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
			k.scheduler.c.Place(guest, d.Node)
			moved = append(moved, guest)
		} else {
			count++
		}
	}

	for _, p := range moved {
		k.scheduler.c.RemovePod(p.UID)
	}
	k.scheduler.c.SetNode(m.object)
	for _, p := range moving {
		k.scheduler.c.Place(p, n)
	}
	return count
}
