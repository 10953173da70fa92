package simulate

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// What other packages may ask of a world: its pods, nodes, decisions and departures. Nothing
// here changes it, except for Settle and UntilTurn, which try pods. Objects are returned as
// the world has them, without a copy, and must not be changed.

// Found is a pod as the world has it.
type Found struct {
	// Object is the pod as the API server has it, or would have it. It must not be changed.
	Object *v1.Pod
	// Pod is the engine's form of it; nil if the pod has ended or no longer waits for a node.
	// It is replaced when the pod changes, so it is good for the present moment only.
	Pod *cluster.Pod
	// Refused is why the API server would refuse to create it; empty if it would not.
	Refused string
	// Message is why it found no node, if it was tried in this world. For a member of a pod group
	// that waits, it is why the group does.
	Message string
	// Group is the pod group that it is a member of, if any.
	Group string
}

// Cluster is the cluster as decisions see it. Callers may change it to try something, and
// must change it back before anything else is asked.
func (w *World) Cluster() *cluster.Cluster { return w.c }

// Trial returns the world for trials: what is changed in it has to be undone before the caller
// returns.
func (w *World) Trial() *world.World { return w.scheduler.api }

// Now is the time in the world.
func (w *World) Now() time.Time { return w.clock.time() }

// Elapsed is how much time has passed in the world since it began.
func (w *World) Elapsed() time.Duration { return w.clock.now }

// Find returns a pod by its name.
func (w *World) Find(namespace, name string) (Found, bool) {
	p := w.pods.named[Name{namespace, name}]
	if p == nil {
		return Found{}, false
	}
	return w.scheduler.found(p), true
}

// found returns a pod as others see it.
func (s *scheduler) found(p *pod) Found {
	f := Found{Object: p.object, Pod: p.Pod, Refused: p.refused, Message: p.refusal}
	if s.groups != nil {
		f.Group = groups.NameOf(p.object)
	}
	return f
}

// Each lists all pods by namespace and name, those that have ended included.
func (w *World) Each() []Found {
	return w.scheduler.allFound(&w.pods)
}

// allFound is World.Each.
func (s *scheduler) allFound(of *pods) []Found {
	pods := of.byName()
	list := make([]Found, len(pods))
	for i, p := range pods {
		list[i] = s.found(p)
	}
	return list
}

// PodsOf lists the pods of a workload, named as deployment/web, that are not being deleted,
// by name. It is an error if there is no such workload.
func (w *World) PodsOf(ref, namespace string) ([]Found, error) {
	l, err := w.workloads.findNamed(ref, namespace)
	if err != nil {
		return nil, err
	}
	var list []Found
	for _, p := range w.controllers.podsOf(l) {
		list = append(list, w.scheduler.found(p))
	}
	slices.SortFunc(list, func(a, b Found) int { return cmp.Compare(a.Object.Name, b.Object.Name) })
	return list, nil
}

// compare orders by namespace, then by name.
func (n Name) compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// Node returns a node by its name, or nil.
func (w *World) Node(name string) *v1.Node {
	if m := w.nodes.named[name]; m != nil {
		return m.object
	}
	return nil
}

// Profile returns the profile that serves the scheduler name, or nil.
func (w *World) Profile(schedulerName string) *plugins.Profile {
	return w.scheduler.profiles[schedulerName]
}

// Decider returns the decider for pods of the scheduler name, or nil if no profile serves it.
// It decides about the world's cluster, and changes nothing by that.
func (w *World) Decider(schedulerName string) *decide.Decider {
	return w.scheduler.core.Decider(schedulerName)
}

// Gate returns why the pod may not be tried yet, or "" if it may.
func (w *World) Gate(p *cluster.Pod) string { return w.scheduler.gateReason(p) }

// Queue lists the pending pods that may be tried, in the order in which they will be. Pods in
// back-off are among them, although others may be tried before.
func (w *World) Queue() []*cluster.Pod { return w.scheduler.pendingInOrder() }

// UntilTurn tries the pods that are ahead of the named one in the queue, and leaves all
// others pending. For a name that does not exist, it tries none.
func (w *World) UntilTurn(namespace, name string) {
	w.scheduler.untilTurn(w.pods.named[Name{namespace, name}])
}

// Stored reports whether the pod came from an API server. Such a pod is taken as it is, and is not
// tried as if it were new.
func Stored(p *v1.Pod) bool { return admission.Stored(p) && p.ResourceVersion != "" }

// Settle tries pending pods until nothing changes. No time passes.
func (w *World) Settle() { w.scheduler.trySettled() }

// Pods returns the decisions so far, in order.
func (w *World) Pods() []Pod { return w.report.said.Pods }

// Outlook lists the evictions that are still to come.
func (w *World) Outlook() []Eviction {
	list := w.evictions.toCome()
	slices.SortFunc(list, Eviction.compare)
	return list
}

// Departures lists the pods that have left their nodes so far, in order. Their fates may
// still change as time passes.
func (w *World) Departures() []*Departure {
	for _, d := range w.controllers.waiting {
		if !w.workloads.isWanted(d.object) { // its set was scaled meanwhile
			d.Fate = Ends
		}
	}
	return w.controllers.departed
}

// Next returns the pod that replaces the one that left: its name, and its node or why it has
// none. ok is false if there is no such pod: it was not replaced, or not yet.
func (d *Departure) Next() (name Name, node, message string, ok bool) {
	if d.next == nil {
		return Name{}, "", "", false
	}
	p := d.next
	return Name{p.object.Namespace, p.object.Name}, p.NodeName, cmp.Or(p.refused, p.refusal), true
}

// PriorityClasses returns the classes that users may give to pods, lowest first. Those of the
// system are not among them.
func (w *World) PriorityClasses() []*schedulingv1.PriorityClass {
	var list []*schedulingv1.PriorityClass
	for _, class := range w.pods.catalog.PriorityClasses {
		if _, system := rules.SystemPriority(class.Name); !system {
			list = append(list, class)
		}
	}
	slices.SortFunc(list, func(a, b *schedulingv1.PriorityClass) int {
		return cmp.Or(cmp.Compare(a.Value, b.Value), cmp.Compare(a.Name, b.Name))
	})
	return list
}
