// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Operation is a change of a cluster, used for a step of a scenario or a request. Exactly one field
// is set. If kubectl has a command of the same name, the operation has the same effect; where
// kubectl would refuse or only warn, Done has a note.
type Operation struct {
	Taint      *Tainting  `json:"taint,omitempty"`   // as in kubectl taint: k=v:Effect adds a taint, a trailing "-" removes one
	Untaint    *Tainting  `json:"untaint,omitempty"` // the same; the trailing "-" is optional
	Cordon     *Nodes     `json:"cordon,omitempty"`
	Uncordon   *Nodes     `json:"uncordon,omitempty"`
	Drain      *Drain     `json:"drain,omitempty"`
	Fail       *Nodes     `json:"fail,omitempty"`    // the nodes fall silent: they send neither heartbeats nor reports
	Recover    *Nodes     `json:"recover,omitempty"` // the nodes report again, and are ready
	Condition  *Condition `json:"condition,omitempty"`
	Pressure   *Pressure  `json:"pressure,omitempty"`
	Use        *Use       `json:"use,omitempty"`
	RemoveNode *Nodes     `json:"removeNode,omitempty"`
	AddNodes   *AddNodes  `json:"addNodes,omitempty"`
	AddPods    *AddPods   `json:"addPods,omitempty"`
	Deploy     Files      `json:"deploy,omitempty"` // kubectl apply -f
	Scale      *Scale     `json:"scale,omitempty"`
	Delete     *Delete    `json:"delete,omitempty"`
	Evict      *Evict     `json:"evict,omitempty"`
	Rebalance  *Rebalance `json:"rebalance,omitempty"`
}

// Tainting adds taints to nodes, or removes them.
type Tainting struct {
	Nodes
	Taints []string `json:"taints"`
	// Overwrite is kubectl's --overwrite; without it, existing taints are kept.
	Overwrite bool `json:"overwrite,omitempty"`
}

// Condition is a condition reported by nodes, as TYPE=STATUS, such as MemoryPressure=True. It lasts
// until it is set again.
type Condition struct {
	Nodes
	Condition string `json:"condition"`
}

// AddNodes adds Count copies of the node Like, empty except for DaemonSet pods.
type AddNodes struct {
	Count int    `json:"count"`
	Like  string `json:"like"`
}

// AddPods adds pods like an existing one (pod/NAME, or a workload such as deployment/NAME); with
// Max, as many as fit without preemption.
type AddPods struct {
	Count     int    `json:"count,omitempty"`
	Max       bool   `json:"max,omitempty"`
	Like      string `json:"like"`
	Namespace string `json:"namespace,omitempty"`
}

// Scale sets a workload's replicas, like kubectl scale.
type Scale struct {
	Workload  string `json:"workload"` // deployment/NAME, statefulset/NAME, replicaset/NAME
	Namespace string `json:"namespace,omitempty"`
	Replicas  int    `json:"replicas"`
}

// Delete deletes a pod, a node or a workload. Pods are removed immediately, without their grace
// period; a workload's pods are removed with it.
type Delete struct {
	Object    string `json:"object"` // pod/NAME, deployment/NAME, ...
	Namespace string `json:"namespace,omitempty"`
}

// Files lists manifest names, given as a string or a list.
type Files []string

// Done is the outcome of an operation, without its consequences.
type Done struct {
	// Notes are for the user.
	Notes []string
	// Drain is set for drains, Fill is set for added pods, and Moved is set for rebalances. Drain
	// and Moved are complete once time has passed.
	Drain *Drained
	Fill  *Fill
	Moved *Moved
	// Evicted holds the results for the pods to evict.
	Evicted []Evicted
}

// Do carries out an operation now. Its consequences follow immediately or as time passes.
func (w *World) Do(op *Operation) (*Done, error) { return w.operations.carryOut(op) }

// Apply applies manifests like kubectl apply: it creates new objects, and scales existing workloads
// or, if their template changed, rolls them out immediately.
func (w *World) Apply(set *manifest.Set) (*Done, error) { return w.operations.applySet(set) }

// operations carries out users' operations on a cluster. Each operation happens at one virtual
// time: either it changes the API server's objects like kubectl's request would, or it is refused
// and changes none. The controllers react to the changed objects as time passes. A drain or a
// rebalance continues for some time and puts its later steps on the agenda.
type operations struct {
	*controllers
	*reactions
	bounds *bounds

	// options are the world's options. gangs means that the Jobs in manifests become gangs.
	options *Options
	gangs   bool
}

// carryOut carries out an operation within the world's allowance. If the allowance is used up, it
// returns an error, although part of the operation may have taken effect.
func (o *operations) carryOut(op *Operation) (*Done, error) {
	done, err := o.runOperation(op)
	if err == nil && o.allowed.mustStop() {
		err = o.allowed.ended
	}
	return done, err
}

// runOperation dispatches on the field that is set. If several fields are set, the first in the
// order below takes precedence; scenario validation rejects such operations.
func (o *operations) runOperation(op *Operation) (*Done, error) {
	o.report.touched = true
	switch {
	case op.Taint != nil:
		return o.nodes.taintNodes(op.Taint, false)
	case op.Untaint != nil:
		return o.nodes.taintNodes(op.Untaint, true)
	case op.Cordon != nil:
		return &Done{}, o.nodes.cordonNodes(op.Cordon, true)
	case op.Uncordon != nil:
		return &Done{}, o.nodes.cordonNodes(op.Uncordon, false)
	case op.Drain != nil:
		return o.drainNodes(op.Drain)
	case op.Fail != nil:
		return &Done{}, o.nodes.eachSelected(op.Fail, o.health.silenceNode)
	case op.Recover != nil:
		return &Done{}, o.nodes.eachSelected(op.Recover, o.reviveNode)
	case op.Condition != nil:
		return &Done{}, o.nodes.setCondition(op.Condition)
	case op.Pressure != nil:
		return o.kubelets.pressNodes(op.Pressure)
	case op.Use != nil:
		return o.kubelets.useResources(op.Use)
	case op.RemoveNode != nil:
		return &Done{}, o.nodes.eachSelected(op.RemoveNode, o.removeNode)
	case op.AddNodes != nil:
		return &Done{}, o.nodes.addLike(op.AddNodes)
	case op.AddPods != nil:
		return o.addPods(op.AddPods)
	case op.Deploy != nil:
		return o.applyFiles(op.Deploy)
	case op.Scale != nil:
		return o.controllers.scaleWorkload(op.Scale)
	case op.Delete != nil:
		return o.deleteObject(op.Delete)
	case op.Evict != nil:
		return o.evictPods(op.Evict)
	case op.Rebalance != nil:
		return o.rebalanceNodes(op.Rebalance)
	}

	return nil, errors.New("nothing to do: name one operation")
}

// removeNode removes a node together with its pods. The pods leave while the node still exists, so
// that controllers can look up the node; node health forgets the node last.
func (o *operations) removeNode(name string) {
	delete(o.kubelets.measured, name)
	o.controllers.loseNode(name)
	o.nodes.removeNode(name)
	o.health.removeNode(name)
	o.report.addEvent(Event{Kind: "NodeRemoved", Node: name})
}

// reviveNode makes a node report again. Deletions of pods blocked on it now complete, and its
// kubelet immediately checks its remaining memory and disk.
func (o *operations) reviveNode(name string) {
	o.health.reviveNode(name)
	o.controllers.completeDeletions(name)
	o.kubelets.lookAt(name, o.clock.now)
}

// deleteObject deletes a pod, a node or a workload. It deletes nodes itself, and leaves pods and
// workloads to controllers, which create the successor pods.
func (o *operations) deleteObject(op *Delete) (*Done, error) {
	switch kind, name, _ := strings.Cut(op.Object, "/"); strings.ToLower(kind) {
	case "node", "nodes", "no":
		return &Done{}, o.nodes.eachSelected(&Nodes{Node: name}, o.removeNode)
	}
	return o.controllers.deleteNamed(op)
}

// Nodes selects nodes by name, by zone and by labels. A node matching any of these is selected. The
// zero value selects nothing, which is an error; selecting all nodes must be explicit.
type Nodes struct {
	Node     string   `json:"node,omitempty"`
	Nodes    []string `json:"nodes,omitempty"`
	Zone     string   `json:"zone,omitempty"`
	Selector string   `json:"selector,omitempty"`
	All      bool     `json:"all,omitempty"`
}

// resolveNames returns the selected nodes by name, without duplicates. An empty selection or an
// unknown node is an error: it is probably a typo, and doing nothing would hide it.
func (n Nodes) resolveNames(all *nodes) ([]string, error) {
	found := map[string]bool{}
	names := n.Nodes
	if n.Node != "" {
		names = append(slices.Clone(names), n.Node)
	}

	for _, name := range names {
		if all.named[name] == nil {
			return nil, fmt.Errorf("there is no node %q", name)
		}
		found[name] = true
	}

	selector, err := labels.Parse(n.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector %q: %w", n.Selector, err)
	}

	if !n.All && n.Zone == "" && n.Selector == "" && len(found) > 0 {
		return slices.Sorted(maps.Keys(found)), nil
	}
	for name, m := range all.named {
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

// String describes the selection, for the error about an empty selection.
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

// NodeLike returns a new node of that name with the labels, taints and size of the model, but
// without the taints and conditions that reflect the model's state. If the model has reported
// conditions, the new node is ready; otherwise, as with hand-written manifests, it has no
// conditions. NodeLike does not modify the model.
func NodeLike(model *v1.Node, name string) *v1.Node {
	n := model.DeepCopy()
	n.ObjectMeta = metav1.ObjectMeta{Name: name, UID: "", Labels: n.Labels, Annotations: nil}
	if _, ok := n.Labels[v1.LabelHostname]; ok {
		n.Labels[v1.LabelHostname] = name
	}
	n.Spec.Unschedulable = false
	n.Spec.ProviderID, n.Spec.PodCIDR, n.Spec.PodCIDRs = "", "", nil
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return ofState[t.Key] })
	n.Status.Conditions, n.Status.Addresses, n.Status.VolumesAttached, n.Status.VolumesInUse = nil, nil, nil, nil
	if len(model.Status.Conditions) > 0 {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}}
	}
	return n
}

// ofState holds the keys of taints that reflect a node's state. Node health manages all of them
// except out-of-service, which users set for a node that is shut down.
var ofState = map[string]bool{
	v1.TaintNodeNotReady: true, v1.TaintNodeUnreachable: true, v1.TaintNodeUnschedulable: true, v1.TaintNodeMemoryPressure: true,
	v1.TaintNodeDiskPressure: true, v1.TaintNodePIDPressure: true, v1.TaintNodeNetworkUnavailable: true, v1.TaintNodeOutOfService: true,
}

// OfState reports whether a taint reflects the node's state. Such a taint returns after it was
// removed by hand.
func OfState(t *v1.Taint) bool { return ofState[t.Key] }

// notReady reports whether the node's Ready condition marks it as not ready. A node without the
// condition counts as ready.
func notReady(n *v1.Node) bool {
	ready := disruption.ReadinessOf(n)
	return ready != "" && ready != v1.ConditionTrue
}

// Allowance bounds the cost of a world; the zero value is unlimited. Servers set it, because a
// one-line request can create a hundred thousand pods.
type Allowance struct {
	// Stop, if set, is called between decisions. Once it returns an error, no further decision is
	// made and the current operation fails with that error. It is usually the Err method of a
	// context.
	Stop func() error
	// Pods and Nodes limit the total numbers of pods and nodes that operations may add; 0 means
	// unlimited.
	Pods, Nodes int
}

// allowed tracks the used part of an Allowance. Once ended is set, it is never cleared: the world
// is incomplete and must not serve requests.
type allowed struct {
	Allowance
	pods, nodes int   // maximum numbers; 0 means unlimited
	ended       error // reason no further decisions are made
	there       func() (pods, nodes int)
}

// countExisting computes the maximum numbers from the existing pods and nodes and the allowance.
func (a *allowed) countExisting() {
	pods, nodes := a.there()
	if a.Pods > 0 {
		a.pods = pods + a.Pods
	}
	if a.Nodes > 0 {
		a.nodes = nodes + a.Nodes
	}
}

// Err returns the reason the world has stopped, or nil.
func (w *World) Err() error { return w.allowed.ended }

// mustStop reports whether to stop. Every loop with a length that depends on an operation or on the
// cluster calls it at least once per decision.
func (a *allowed) mustStop() bool {
	pods, nodes := a.there()
	switch {
	case a.ended != nil:
	case a.pods > 0 && pods > a.pods:
		a.ended = fmt.Errorf("more than %d pods would be added: ask for fewer", a.Pods)
	case a.nodes > 0 && nodes > a.nodes:
		a.ended = fmt.Errorf("more than %d nodes would be added: ask for fewer", a.Nodes)
	case a.Stop != nil:
		a.ended = a.Stop()
	}
	return a.ended != nil
}
