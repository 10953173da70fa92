// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"errors"
	"strings"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
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
