package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Fill is how many pods of one kind fit.
type Fill struct {
	Like   string         `json:"like"`
	Wanted int            `json:"wanted,omitempty"` // 0: as many as possible
	Placed int            `json:"placed"`
	Nodes  map[string]int `json:"nodes"`
	// Stops is why one more does not fit, as the FailedScheduling event words it, and Reasons
	// counts the nodes by reason. Both are empty if all requested pods fit.
	Stops   string         `json:"stops,omitempty"`
	Reasons map[string]int `json:"reasons,omitempty"`
}

// mostPods bounds how many pods are added to find out how many fit.
const mostPods = 200_000

// addPods places pods like another one where there is room, without preemption. If their number is
// given, those that do not fit become pending, like any new pod.
func (w *World) addPods(op *AddPods) (*Done, error) {
	model, err := w.model(op)
	if err != nil {
		return nil, err
	}
	if op.Max == (op.Count > 0) {
		return nil, errors.New("give a number of pods, or max for as many as fit")
	}
	if op.Count < 0 || op.Count > mostPods {
		return nil, fmt.Errorf("%d pods: must be from 1 to %d", op.Count, mostPods)
	}
	fill := &Fill{Like: op.Like, Wanted: op.Count, Nodes: map[string]int{}}
	limit := op.Count
	if op.Max {
		limit = mostPods
		if w.allowed.pods > 0 {
			limit = min(limit, max(0, w.allowed.pods-len(w.pods.named)))
		}
	}
	if w.scheduler.profiles[model.Spec.SchedulerName] == nil {
		return nil, fmt.Errorf("no profile serves the scheduler name %q", model.Spec.SchedulerName)
	}
	w.scheduler.settle() // pods that are pending already go first
	for fill.Placed < limit && !w.allowed.halted() {
		p := w.copyOf(model, fill.Placed+1)
		if fill.Stops = w.bounds.charge(p.object, true); fill.Stops == "" {
			if fill.Stops, fill.Reasons = w.scheduler.tryAlone(p); fill.Stops != "" {
				w.bounds.release(p.object)
			}
		}
		if fill.Stops != "" {
			break
		}
		p.charged = true
		w.pods.know(p)
		w.budgets.expect(p, 1)
		fill.Placed++
		fill.Nodes[p.NodeName]++
	}
	for i := fill.Placed + 1; i <= op.Count && !w.allowed.halted(); i++ { // the others stay pending, or preempt
		p := w.copyOf(model, i)
		w.claims.makeFor(p.object)
		w.budgets.expect(w.pods.enter(p.object, w.bounds.charge(p.object, true)), 1)
	}
	if fill.Placed == limit && op.Max {
		fill.Stops = fmt.Sprintf("not tried beyond %d pods", limit)
	}
	w.report.tell(Event{Kind: "PodsAdded", Message: fmt.Sprintf("%d like %s", fill.Placed, op.Like)})
	return &Done{Fill: fill}, nil
}

// copyOf is a new pod like the model.
func (w *World) copyOf(model *v1.Pod, number int) *pod {
	object := *model
	object.Name = fmt.Sprintf("%s-copy-%d", strings.TrimSuffix(model.Name, "-"), number)
	object.UID = types.UID(fmt.Sprintf("%s/%s-%d", object.Namespace, object.Name, w.pods.entered+1))
	object.CreationTimestamp = metav1.NewTime(w.clock.time())
	w.pods.entered++
	return &pod{number: w.pods.entered, object: &object}
}

// model returns the pod that the new ones are to be like, after admission.
func (w *World) model(op *AddPods) (*v1.Pod, error) {
	kind, name, ok := strings.Cut(op.Like, "/")
	if !ok {
		kind, name = "pod", op.Like
	}
	namespace := cmp.Or(op.Namespace, v1.NamespaceDefault)
	var model *v1.Pod
	if strings.EqualFold(kind, "pod") || strings.EqualFold(kind, "pods") || strings.EqualFold(kind, "po") {
		if model = w.objectOf(Name{namespace, name}); model == nil {
			return nil, fmt.Errorf("there is no pod %s/%s to take as a model", namespace, name)
		}
		model = model.DeepCopy()
	} else {
		l, err := w.workloads.named(op.Like, namespace)
		if err != nil {
			return nil, err
		}
		created := w.controllers.podOf(l.object, l.kind, l.template)
		created.Name = l.object.GetName()
		if model, err = w.pods.admit(created); err != nil {
			return nil, err
		}
	}
	if ref := metav1.GetControllerOfNoCopy(model); ref != nil && ref.Kind == "DaemonSet" {
		return nil, fmt.Errorf("%s is of a DaemonSet, which has a pod on each node already", op.Like)
	}
	model.Spec.NodeName, model.ResourceVersion, model.DeletionTimestamp = "", "", nil
	model.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: model.Status.QOSClass}
	return model, nil
}

// objectOf returns the pod of that name, even if it has left.
func (w *World) objectOf(name Name) *v1.Pod {
	if p := w.pods.named[name]; p != nil {
		return p.object
	}
	for _, d := range slices.Backward(w.controllers.departed) {
		if d.Namespace == name.Namespace && d.Name == name.Name {
			return d.object
		}
	}
	return nil
}

// Choose finds the nodes that cost least to lose, one after the other, each as if those before it
// were gone: of those that the drain selects, or of all if it selects none. It changes the world:
// the chosen nodes are drained.
func (w *World) Choose(count int, drain *Drain) (chosen []Cost, drains []*Drained, err error) {
	names := w.nodes.names()
	if drain.Selector != "" {
		if names, err = drain.resolve(&w.nodes); err != nil {
			return nil, nil, err
		}
	}
	if count < 1 || count > len(names) {
		return nil, nil, fmt.Errorf("%w: %d of %d", ErrTooFew, count, len(names))
	}
	w.scheduler.settle()
	candidates := make([]Cost, 0, len(names))
	for _, name := range names {
		if w.nodes.named[name].object.Spec.Unschedulable {
			continue // it is about to leave already
		}
		candidates = append(candidates, w.bound(name))
	}
	for len(chosen) < count && !w.allowed.halted() {
		if len(candidates) == 0 {
			return nil, nil, fmt.Errorf("%w that are not cordoned: %d of %d", ErrTooFew, count, len(names))
		}
		slices.SortFunc(candidates, func(a, b Cost) int { return a.compare(&b) })
		best := w.cheapest(candidates)
		chosen = append(chosen, candidates[best])
		op := *drain
		op.Nodes = Nodes{Node: candidates[best].Node}
		op.Force, op.IgnoreDaemonSets, op.DeleteEmptyDirData = true, true, true
		done, err := w.drain(&op)
		if err != nil {
			return nil, nil, err
		}
		drains = append(drains, done.Drain)
		w.AdvanceUntilQuiet(w.clock.now + drainPatience + drainRetry)
		candidates = slices.Delete(candidates, best, best+1)
		for i := range candidates { // pods have moved there
			candidates[i] = w.bound(candidates[i].Node)
		}
	}
	return chosen, drains, w.allowed.ended
}

// cheapest returns the index of the candidate that actually costs least. The candidates are sorted
// by their bounds, which assume that no pod stays pending, so the search ends at a bound that does
// not undercut the best cost.
func (w *World) cheapest(candidates []Cost) int {
	const most = 64 // pods that fit nowhere else are rare; where they are not, the best of these will do
	best := -1
	for i := range candidates[:min(most, len(candidates))] {
		if best >= 0 && (candidates[best].compare(&candidates[i]) <= 0 || w.allowed.halted()) {
			break
		}
		candidates[i].Pending = w.homeless(candidates[i].Node)
		if best < 0 || candidates[i].compare(&candidates[best]) < 0 {
			best = i
		}
	}
	return best
}

// bound is a lower bound of what losing the node costs.
func (w *World) bound(name string) Cost {
	c := Cost{Node: name}
	allowed := map[string]int32{}
	for _, cp := range w.c.Node(name).Pods {
		p := w.pods.placed[cp.UID]
		if p == nil || p.Terminating {
			continue
		}
		owner := metav1.GetControllerOfNoCopy(p.object)
		if _, mirror := p.object.Annotations[v1.MirrorPodAnnotationKey]; mirror || owner != nil && owner.Kind == "DaemonSet" {
			continue
		}
		c.Evicted++
		c.Priority += int64(p.Class.Priority)
		if owner == nil {
			c.Lost++
		}
		for _, b := range w.budgets.of(p.Class) {
			key := b.Namespace + "/" + b.Name
			if allowed[key]++; allowed[key] > b.Status.DisruptionsAllowed {
				c.Blocked++
				break
			}
		}
	}
	return c
}

// homeless counts the node's pods that would fit on no other node. The world is left as it was.
func (w *World) homeless(name string) (count int) {
	m, n := w.nodes.named[name], w.c.Node(name)
	cordoned := m.object.DeepCopy()
	cordoned.Spec.Unschedulable = true
	w.c.SetNode(cordoned)
	var moving, moved []*cluster.Pod
	for _, p := range w.pods.on(name) {
		owner := metav1.GetControllerOfNoCopy(p.object)
		if owner != nil && owner.Kind != "DaemonSet" && owner.Kind != "Node" && !p.Terminating {
			moving = append(moving, p.Pod)
		}
	}
	for _, p := range moving {
		w.c.RemovePod(p.UID)
	}
	for _, p := range moving {
		object := w.pods.placed[p.UID].object.DeepCopy()
		object.Spec.NodeName, object.UID, object.Status.NominatedNodeName = "", p.UID+"/moved", ""
		guest := w.c.Pending(object)
		decider := w.scheduler.core.Decider(object.Spec.SchedulerName)
		if decider == nil {
			count++
			continue
		}
		if d := decider.Decide(guest); d.Node != nil {
			w.c.Place(guest, d.Node)
			moved = append(moved, guest)
		} else {
			count++
		}
	}
	for _, p := range moved {
		w.c.RemovePod(p.UID)
	}
	w.c.SetNode(m.object)
	for _, p := range moving {
		w.c.Place(p, n)
	}
	return count
}
