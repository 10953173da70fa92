package simulate

import (
	"errors"
	"strings"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// Operation is a change of a cluster, as one step of a scenario or one request. Exactly one
// field is set. Each field does what the command of its name does; where kubectl would refuse
// or only warn, Done has a note.
type Operation struct {
	Taint      *Tainting  `json:"taint,omitempty"`   // as kubectl taint: k=v:Effect adds, a trailing "-" removes
	Untaint    *Tainting  `json:"untaint,omitempty"` // the same; the trailing "-" may be left out
	Cordon     *Nodes     `json:"cordon,omitempty"`
	Uncordon   *Nodes     `json:"uncordon,omitempty"`
	Drain      *Drain     `json:"drain,omitempty"`
	Fail       *Nodes     `json:"fail,omitempty"`    // the nodes fall silent: no heartbeat, nothing is reported
	Recover    *Nodes     `json:"recover,omitempty"` // they report again, and are ready
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
	// Overwrite is kubectl's --overwrite, without which it keeps taints that are there already.
	Overwrite bool `json:"overwrite,omitempty"`
}

// Condition is what nodes report of themselves, as TYPE=STATUS, such as MemoryPressure=True.
// It stays until it is set again.
type Condition struct {
	Nodes
	Condition string `json:"condition"`
}

// AddNodes adds Count nodes like an existing one, empty except for its DaemonSets. Like names
// the node to copy.
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

// Scale sets a workload's replicas, as kubectl scale does.
type Scale struct {
	Workload  string `json:"workload"` // deployment/NAME, statefulset/NAME, replicaset/NAME
	Namespace string `json:"namespace,omitempty"`
	Replicas  int    `json:"replicas"`
}

// Delete deletes a pod, a node or a workload. Pods go at once, without their grace period;
// those of a workload go with it.
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
	// Evicted are the answers for pods that were to be evicted.
	Evicted []Evicted
}

// Do carries out an operation now. Its consequences follow as time passes, at once or later.
func (w *World) Do(op *Operation) (*Done, error) { return w.operations.carryOut(op) }

// Apply applies manifests as kubectl apply does: new objects are created; existing workloads are
// scaled or, if their template changed, rolled out at once.
func (w *World) Apply(set *manifest.Set) (*Done, error) { return w.operations.applySet(set) }

// operations carry out what users do to a cluster. Each happens at one time: it changes the
// API server's objects as kubectl's request would, or is refused and changes none. What
// follows from it is left to those that react to these objects, as time passes. A drain and a
// rebalance go on for some time, and put their later steps on the agenda.
type operations struct {
	clock       *clock
	report      *report
	allowed     *allowed
	pods        *pods
	nodes       *nodes
	workloads   *workloads
	claims      *claims
	budgets     *budgets
	bounds      *bounds
	scheduler   *scheduler
	health      *health
	kubelets    *kubelets
	controllers *controllers

	// options are those of the world; gangs means that the Jobs of manifests become gangs.
	options *Options
	gangs   bool // Jobs become gangs
}

// carryOut carries out an operation, within what the world may cost. If an allowance ends
// during it, that is the error, although part of the operation may have been done.
func (o *operations) carryOut(op *Operation) (*Done, error) {
	done, err := o.runOperation(op)
	if err == nil && o.allowed.mustStop() {
		err = o.allowed.ended
	}
	return done, err
}

// runOperation calls what carries out the field that is set. If several are set, the first in
// the order below wins; scenarios are checked for that.
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

// removeNode removes a node together with its pods. The pods leave while the node still
// exists, so that their controllers see where they were; node health forgets the node last.
func (o *operations) removeNode(name string) {
	delete(o.kubelets.measured, name)
	o.controllers.loseNode(name)
	o.nodes.removeNode(name)
	o.health.removeNode(name)
	o.report.addEvent(Event{Kind: "NodeRemoved", Node: name})
}

// reviveNode makes a node report again. Deletions of its pods that were waiting for it
// complete now, and its kubelet looks at once at what is left of its memory and disk.
func (o *operations) reviveNode(name string) {
	o.health.reviveNode(name)
	o.controllers.completeDeletions(name)
	o.kubelets.lookAt(name, o.clock.now)
}

// deleteObject deletes a pod, a node or a workload. Nodes are handled here, and all others by
// controllers, because of what replaces them.
func (o *operations) deleteObject(op *Delete) (*Done, error) {
	switch kind, name, _ := strings.Cut(op.Object, "/"); strings.ToLower(kind) {
	case "node", "nodes", "no":
		return &Done{}, o.nodes.eachSelected(&Nodes{Node: name}, o.removeNode)
	}
	return o.controllers.deleteNamed(op)
}
