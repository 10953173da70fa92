package simulate

import (
	"errors"
	"strings"
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
	// Evicted are the answers for pods that were to be evicted.
	Evicted []Evicted
}

// Do carries out an operation now. Its consequences follow as time passes, at once or later.
func (w *World) Do(op *Operation) (*Done, error) {
	done, err := w.runOperation(op)
	if err == nil && w.allowed.mustStop() {
		err = w.allowed.ended
	}
	return done, err
}

func (w *World) runOperation(op *Operation) (*Done, error) {
	w.report.touched = true
	switch {
	case op.Taint != nil:
		return w.nodes.taintNodes(op.Taint, false)
	case op.Untaint != nil:
		return w.nodes.taintNodes(op.Untaint, true)
	case op.Cordon != nil:
		return &Done{}, w.nodes.cordonNodes(op.Cordon, true)
	case op.Uncordon != nil:
		return &Done{}, w.nodes.cordonNodes(op.Uncordon, false)
	case op.Drain != nil:
		return w.drainNodes(op.Drain)
	case op.Fail != nil:
		return &Done{}, w.nodes.eachSelected(op.Fail, w.health.silenceNode)
	case op.Recover != nil:
		return &Done{}, w.nodes.eachSelected(op.Recover, w.reviveNode)
	case op.Condition != nil:
		return &Done{}, w.nodes.setCondition(op.Condition)
	case op.Pressure != nil:
		return w.kubelets.pressNodes(op.Pressure)
	case op.Use != nil:
		return w.kubelets.useResources(op.Use)
	case op.RemoveNode != nil:
		return &Done{}, w.nodes.eachSelected(op.RemoveNode, w.removeNode)
	case op.AddNodes != nil:
		return &Done{}, w.nodes.addLike(op.AddNodes)
	case op.AddPods != nil:
		return w.addPods(op.AddPods)
	case op.Deploy != nil:
		return w.applyFiles(op.Deploy)
	case op.Scale != nil:
		return w.controllers.scaleWorkload(op.Scale)
	case op.Delete != nil:
		return w.deleteObject(op.Delete)
	case op.Evict != nil:
		return w.evictPods(op.Evict)
	case op.Rebalance != nil:
		return w.rebalanceNodes(op.Rebalance)
	}

	return nil, errors.New("nothing to do: name one operation")
}

// removeNode removes a node together with its pods.
func (w *World) removeNode(name string) {
	delete(w.kubelets.measured, name)
	w.controllers.loseNode(name)
	w.nodes.removeNode(name)
	w.health.removeNode(name)
	w.report.addEvent(Event{Kind: "NodeRemoved", Node: name})
}

// reviveNode makes a node report again. Deletions of its pods that were waiting for it complete
// now.
func (w *World) reviveNode(name string) {
	w.health.reviveNode(name)
	w.controllers.completeDeletions(name)
	w.kubelets.lookAt(name, w.clock.now)
}

// deleteObject deletes a pod, a node or a workload.
func (w *World) deleteObject(op *Delete) (*Done, error) {
	switch kind, name, _ := strings.Cut(op.Object, "/"); strings.ToLower(kind) {
	case "node", "nodes", "no":
		return &Done{}, w.nodes.eachSelected(&Nodes{Node: name}, w.removeNode)
	}
	return w.controllers.deleteNamed(op)
}
