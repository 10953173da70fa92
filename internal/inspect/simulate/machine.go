package simulate

import (
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// machine is a node and the kubelet on it.
type machine struct {
	object *v1.Node // never changed in place
	// dead is set if its kubelet does not respond. No pod terminates there, and nothing is
	// reported.
	dead bool
	// silent is when a node that is dead from the beginning last renewed its Lease: a negative time
	// from the beginning, or 0 if it is not known.
	silent time.Duration
	// stuck are the pods that were deleted while the node was dead, and whose controllers wait for
	// their end.
	stuck []*pod
	// ending are the pods whose grace period ended while the node was dead.
	ending []*pod
	// gaps are DaemonSet pods that the node has lost. Each is made again once its DaemonSet wants a
	// pod here.
	gaps []*v1.Pod
}

// addMachine adds a node, or replaces the one of the same name.
func (w *World) addMachine(object *v1.Node) {
	if object.UID == "" {
		object = object.DeepCopy()
		object.UID = types.UID("node/" + object.Name)
	}
	w.machines[object.Name] = &machine{object: object, dead: readyOf(object) == v1.ConditionUnknown}
	w.scheduler.show(cycle.Nodes, object)
	w.evictions.hold(object)
}

// defaultLease is the Lease duration where none is given: the kubelet's default.
const defaultLease = 40 * time.Second

// change changes a node, with the consequences of its taints, and has node health see it.
func (w *World) change(name string, alter func(n *v1.Node)) {
	m := w.machines[name]
	w.alter(m, alter)
	if w.health != nil {
		w.health.see(w, m)
	}
}

func (w *World) alter(m *machine, alter func(n *v1.Node)) {
	before := m.object
	m.object = before.DeepCopy()
	alter(m.object)
	w.scheduler.show(cycle.Nodes, m.object)
	n := w.c.Node(m.object.Name)
	w.report.touched = true
	if w.evictions.hold(m.object) {
		for _, p := range n.Pods {
			if known := w.pods.placed[p.UID]; known != nil {
				w.evictions.watch(known, known.since)
			}
		}
	}
	if !equality.Semantic.DeepEqual(before.Spec.Taints, m.object.Spec.Taints) || !maps.Equal(before.Labels, m.object.Labels) {
		w.welcome(m, before)
	}
	gaps := m.gaps
	m.gaps = nil
	for _, p := range gaps {
		if w.runsDaemon(p, m.object) {
			w.makeAgain(p)
		} else {
			m.gaps = append(m.gaps, p)
		}
	}
}

// welcome makes the pods of the DaemonSets that want one on the node now, and did not before.
func (w *World) welcome(m *machine, before *v1.Node) {
	for _, set := range w.workloads.set.DaemonSets {
		if set.DeletionTimestamp == nil && !manifest.RunsDaemon(set, before) && manifest.RunsDaemon(set, m.object) && !w.hasDaemon(m, set) {
			w.makeDaemon(set, m.object.Name)
		}
	}
}

// hasDaemon reports whether the DaemonSet has a pod on the node or for it, or will make the one
// again that the node has lost.
func (w *World) hasDaemon(m *machine, set *appsv1.DaemonSet) bool {
	its := func(p *v1.Pod) bool {
		owner := metav1.GetControllerOfNoCopy(p)
		return owner != nil && owner.Kind == "DaemonSet" && owner.Name == set.Name && p.Namespace == set.Namespace && manifest.DaemonNode(p) == m.object.Name
	}
	if slices.ContainsFunc(m.gaps, its) || slices.ContainsFunc(w.pods.on(m.object.Name), func(p *pod) bool { return its(p.object) }) {
		return true
	}
	for p := range w.scheduler.waiting {
		if its(p.object) {
			return true
		}
	}
	return false
}

// removeMachine removes a node together with its pods.
func (w *World) removeMachine(name string) {
	m := w.machines[name]
	for _, p := range w.pods.on(name) {
		w.depart(p, ByNodeRemoval, name)
	}
	for _, p := range m.stuck {
		w.comeBack(p)
	}
	delete(w.machines, name)
	delete(w.evictions.held, name)
	w.scheduler.showGone(cycle.Nodes, m.object)
	w.report.touched = true
	if w.health != nil {
		w.health.gone(w, name)
	}
	w.report.tell(Event{Kind: "NodeRemoved", Node: name})
}

// Nodes selects nodes: by name, by zone and by labels. A node is selected if any of these selects
// it.
type Nodes struct {
	Node     string   `json:"node,omitempty"`
	Nodes    []string `json:"nodes,omitempty"`
	Zone     string   `json:"zone,omitempty"`
	Selector string   `json:"selector,omitempty"`
	All      bool     `json:"all,omitempty"`
}

// resolve returns the selected nodes by name. It is an error if there are none.
func (n Nodes) resolve(w *World) ([]string, error) {
	found := map[string]bool{}
	names := n.Nodes
	if n.Node != "" {
		names = append(slices.Clone(names), n.Node)
	}
	for _, name := range names {
		if w.machines[name] == nil {
			return nil, fmt.Errorf("there is no node %q", name)
		}
		found[name] = true
	}
	selector, err := labels.Parse(n.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector %q: %w", n.Selector, err)
	}
	for name, m := range w.machines {
		inZone := n.Zone != "" && m.object.Labels[v1.LabelTopologyZone] == n.Zone
		if n.All || inZone || n.Selector != "" && selector.Matches(labels.Set(m.object.Labels)) {
			found[name] = true
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no node is in %s", n)
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// String describes the selection.
func (n Nodes) String() string {
	switch {
	case n.All:
		return "all nodes"
	case n.Zone != "":
		return fmt.Sprintf("zone %q", n.Zone)
	case n.Selector != "":
		return fmt.Sprintf("selector %q", n.Selector)
	case n.Node != "" && len(n.Nodes) == 0:
		return "node " + n.Node
	case len(n.Nodes) > 0:
		return fmt.Sprintf("nodes %v", n.Nodes)
	}
	return "an empty choice: give node, nodes, zone, selector or all"
}
