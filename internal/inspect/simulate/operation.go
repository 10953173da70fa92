package simulate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// Operation is a change of a cluster. Exactly one field is set.
type Operation struct {
	Taint      *Tainting  `json:"taint,omitempty"`   // as kubectl taint: k=v:Effect adds, a trailing "-" removes
	Untaint    *Tainting  `json:"untaint,omitempty"` // the same; the trailing "-" may be left out
	Cordon     *Nodes     `json:"cordon,omitempty"`
	Uncordon   *Nodes     `json:"uncordon,omitempty"`
	Drain      *Drain     `json:"drain,omitempty"`
	Fail       *Nodes     `json:"fail,omitempty"`    // the nodes fall silent: no heartbeat, nothing is reported
	Recover    *Nodes     `json:"recover,omitempty"` // they report again, and are ready
	Condition  *Condition `json:"condition,omitempty"`
	RemoveNode *Nodes     `json:"removeNode,omitempty"`
	AddNodes   *AddNodes  `json:"addNodes,omitempty"`
	AddPods    *AddPods   `json:"addPods,omitempty"`
	Deploy     Files      `json:"deploy,omitempty"` // kubectl apply -f
	Scale      *Scale     `json:"scale,omitempty"`
	Delete     *Delete    `json:"delete,omitempty"`
	Rebalance  *Rebalance `json:"rebalance,omitempty"`
}

// Tainting adds taints to nodes, or removes them.
type Tainting struct {
	Nodes
	Taints []string `json:"taints"`
}

// Condition is what nodes report of themselves, such as MemoryPressure=True.
type Condition struct {
	Nodes
	Condition string `json:"condition"`
}

// AddNodes adds nodes like an existing one, empty except for its DaemonSets.
type AddNodes struct {
	Count int    `json:"count"`
	Like  string `json:"like"`
}

// AddPods adds pods like an existing one (pod/NAME, or a workload as deployment/NAME); with Max, as
// many as fit without preemption.
type AddPods struct {
	Count     int    `json:"count,omitempty"`
	Max       bool   `json:"max,omitempty"`
	Like      string `json:"like"`
	Namespace string `json:"namespace,omitempty"`
}

// Scale sets a workload's replicas.
type Scale struct {
	Workload  string `json:"workload"` // deployment/NAME, statefulset/NAME, replicaset/NAME
	Namespace string `json:"namespace,omitempty"`
	Replicas  int    `json:"replicas"`
}

// Delete deletes a pod or a workload.
type Delete struct {
	Object    string `json:"object"` // pod/NAME, deployment/NAME, ...
	Namespace string `json:"namespace,omitempty"`
}

// Files are names of manifests, given as a string or a list.
type Files []string

// Done is the outcome of an operation, apart from its consequences.
type Done struct {
	// Notes are for the user.
	Notes []string
	// Drain is set for drains, Fill for added pods, Moved for a rebalance. Drain and Moved are
	// complete when time has passed.
	Drain *Drained
	Fill  *Fill
	Moved *Moved
}

// Do carries out an operation now. Its consequences follow as time passes, at once or later.
func (w *World) Do(op *Operation) (*Done, error) {
	done, err := w.do(op)
	if err == nil && w.allowed.halted() {
		err = w.allowed.ended
	}
	return done, err
}

func (w *World) do(op *Operation) (*Done, error) {
	w.report.touched = true
	switch {
	case op.Taint != nil:
		return &Done{}, w.taint(op.Taint, false)
	case op.Untaint != nil:
		return &Done{}, w.taint(op.Untaint, true)
	case op.Cordon != nil:
		return &Done{}, w.cordon(op.Cordon, true)
	case op.Uncordon != nil:
		return &Done{}, w.cordon(op.Uncordon, false)
	case op.Drain != nil:
		return w.drain(op.Drain)
	case op.Fail != nil:
		return &Done{}, w.each(op.Fail, w.silence)
	case op.Recover != nil:
		return &Done{}, w.each(op.Recover, w.revive)
	case op.Condition != nil:
		return &Done{}, w.condition(op.Condition)
	case op.RemoveNode != nil:
		return &Done{}, w.each(op.RemoveNode, w.removeMachine)
	case op.AddNodes != nil:
		return &Done{}, w.addNodes(op.AddNodes)
	case op.AddPods != nil:
		return w.addPods(op.AddPods)
	case op.Deploy != nil:
		return w.deploy(op.Deploy)
	case op.Scale != nil:
		return &Done{}, w.scale(op.Scale)
	case op.Delete != nil:
		return w.delete(op.Delete)
	case op.Rebalance != nil:
		return w.rebalance(op.Rebalance)
	}
	return nil, errors.New("nothing to do: name one operation")
}

func (w *World) each(nodes *Nodes, do func(name string)) error {
	names, err := nodes.resolve(w)
	for _, name := range names {
		if w.allowed.halted() {
			return w.allowed.ended
		}
		do(name)
	}
	return err
}

func (w *World) taint(t *Tainting, off bool) error {
	specs := slices.Clone(t.Taints)
	if len(specs) == 0 {
		return errors.New("no taint is named: give key=value:Effect")
	}
	for i, spec := range specs {
		if off && !strings.HasSuffix(spec, "-") {
			specs[i] = spec + "-"
		}
	}
	change, err := rules.ParseTaintChange(specs)
	if err != nil {
		return err
	}
	names, err := t.resolve(w)
	if err != nil {
		return err
	}
	for _, name := range names {
		before := w.machines[name].object.Spec.Taints
		w.change(name, func(n *v1.Node) { n.Spec.Taints = applied(n.Spec.Taints, change) })
		w.report.tellTaints(name, before, w.machines[name].object.Spec.Taints)
	}
	return nil
}

// applied returns a list of taints after a change, as kubectl writes it: a taint with the same key
// and effect is replaced.
func applied(taints []v1.Taint, change rules.TaintChange) []v1.Taint {
	left := slices.DeleteFunc(slices.Clone(taints), func(t v1.Taint) bool {
		return slices.ContainsFunc(change.Remove, func(r v1.Taint) bool { return r.Key == t.Key && (r.Effect == "" || r.Effect == t.Effect) }) ||
			slices.ContainsFunc(change.Add, func(a v1.Taint) bool { return a.MatchTaint(&t) && a.Value != t.Value })
	})
	for _, add := range change.Add {
		if !slices.ContainsFunc(left, func(t v1.Taint) bool { return t.MatchTaint(&add) }) {
			left = append(left, add)
		}
	}
	return left
}

// cordon cordons nodes, with the taint that follows, or uncordons them.
func (w *World) cordon(nodes *Nodes, on bool) error {
	return w.each(nodes, func(name string) {
		w.setCordon(name, on)
	})
}

func (w *World) setCordon(name string, on bool) {
	if w.machines[name].object.Spec.Unschedulable == on {
		return
	}
	cordon := v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
	change := rules.TaintChange{Add: []v1.Taint{cordon}}
	kind := "NodeCordoned"
	if !on {
		change, kind = rules.TaintChange{Remove: []v1.Taint{cordon}}, "NodeUncordoned"
	}
	w.change(name, func(n *v1.Node) {
		n.Spec.Unschedulable = on
		n.Spec.Taints = applied(n.Spec.Taints, change)
	})
	w.report.tell(Event{Kind: kind, Node: name})
}

// mostNodes bounds how many nodes are added at once: a typing error would otherwise use up all
// memory.
const mostNodes = 100_000

// addNodes creates nodes like another: new, healthy, without the taints and conditions of that
// node's own state.
func (w *World) addNodes(a *AddNodes) error {
	like := w.machines[a.Like]
	switch {
	case like == nil:
		return fmt.Errorf("there is no node %q to take as a model", a.Like)
	case a.Count < 1 || a.Count > mostNodes:
		return fmt.Errorf("%d nodes: must be from 1 to %d", a.Count, mostNodes)
	}
	for number, added := 1, 0; added < a.Count && !w.allowed.halted(); number++ {
		if name := fmt.Sprintf("%s-copy-%d", a.Like, number); w.machines[name] == nil {
			w.addNode(like.object, name)
			added++
		}
	}
	return nil
}

func (w *World) addNode(like *v1.Node, name string) {
	n := NodeLike(like, name)
	n.CreationTimestamp = metav1.NewTime(w.clock.time())
	w.addMachine(n)
	if csi, ok := w.c.CSINodes.Get("", like.Name); ok {
		csi = csi.DeepCopy()
		csi.Name = name
		w.scheduler.show(cycle.CSINodes, csi)
	}
	w.settleIn(n, "like "+like.Name)
}

// settleIn makes the pods of the DaemonSets on a new node, and lets node health know it.
func (w *World) settleIn(n *v1.Node, message string) {
	for _, set := range w.workloads.set.DaemonSets {
		if set.DeletionTimestamp == nil && manifest.RunsDaemon(set, n) {
			w.makeDaemon(set, n.Name)
		}
	}
	if w.health != nil {
		w.health.see(w, w.machines[n.Name])
	}
	w.report.tell(Event{Kind: "NodeAdded", Node: n.Name, Message: message})
}

// NodeLike returns a new node of that name with the labels, taints and size of another, except for
// what that node's own state has added.
func NodeLike(like *v1.Node, name string) *v1.Node {
	n := like.DeepCopy()
	n.ObjectMeta = metav1.ObjectMeta{Name: name, UID: "", Labels: n.Labels, Annotations: nil}
	if _, ok := n.Labels[v1.LabelHostname]; ok {
		n.Labels[v1.LabelHostname] = name
	}
	n.Spec.Unschedulable = false
	n.Spec.ProviderID, n.Spec.PodCIDR, n.Spec.PodCIDRs = "", "", nil
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return ofState[t.Key] })
	n.Status.Conditions, n.Status.Addresses, n.Status.VolumesAttached, n.Status.VolumesInUse = nil, nil, nil, nil
	if len(like.Status.Conditions) > 0 {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}}
	}
	return n
}

// ofState are the keys of the taints that reflect a node's state. Node health manages all of them
// except out-of-service.
var ofState = map[string]bool{
	v1.TaintNodeNotReady: true, v1.TaintNodeUnreachable: true, v1.TaintNodeUnschedulable: true, v1.TaintNodeMemoryPressure: true,
	v1.TaintNodeDiskPressure: true, v1.TaintNodePIDPressure: true, v1.TaintNodeNetworkUnavailable: true, v1.TaintNodeOutOfService: true,
}

// OfState reports whether a taint reflects the node's state, so that removing it by hand does not
// last.
func OfState(t *v1.Taint) bool { return ofState[t.Key] }

func notReady(n *v1.Node) bool {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == v1.NodeReady {
			return c.Status != v1.ConditionTrue
		}
	}
	return false
}

func keepsOff(n *v1.Node) bool { return rules.Untolerated(n.Spec.Taints, nil, rules.KeepsOff) != nil }
