// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"slices"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Refusal is the error of a plugin refusing a pod's binding, at PreBind or Bind: the pod is
// unschedulable, and tried again after its back-off. Its message is upstream's, since events and
// conditions show it.
type Refusal struct {
	Plugin  string
	Reasons []string
}

// Error joins the reasons like a fwk.Status.
func (r *Refusal) Error() string {
	status := fwk.NewStatus(fwk.Unschedulable, r.Reasons...)
	return status.Message()
}

// Unschedulable marks the error as a verdict on the pod and not a failure.
func (r *Refusal) Unschedulable() bool { return true }

// verdicts holds the filters' verdicts on all nodes, in the form for PostFilter plugins. They
// belong to the attempt, and do not change while the plugin looks for victims.
type verdicts struct {
	byNode map[string]*fwk.Status // only rejected nodes
	absent *fwk.Status            // for all other nodes, as in kube-scheduler
}

// newVerdicts converts an evaluation. Only rejected nodes get an entry.
func newVerdicts(e *decide.Evaluation) *verdicts {
	v := &verdicts{byNode: make(map[string]*fwk.Status, len(e.Nodes)), absent: fwk.NewStatus(fwk.UnschedulableAndUnresolvable)}
	for i := range e.Nodes {
		if n := &e.Nodes[i]; n.Rejection != nil {
			v.byNode[n.Node.Name] = statusOf(n.Rejection, n.Plugin)
		}
	}
	return v
}

// statusOf converts a plugin's rejection to the equivalent status in kube-scheduler. It is the
// inverse of toRejection.
func statusOf(r *plugins.Rejection, plugin string) *fwk.Status {
	code := fwk.Unschedulable
	switch {
	case r.Err != nil:
		return fwk.AsStatus(r.Err).WithPlugin(plugin)
	case r.Unresolvable:
		code = fwk.UnschedulableAndUnresolvable
	case r.Pending:
		code = fwk.Pending
	}
	return fwk.NewStatus(code, r.Reasons...).WithPlugin(plugin)
}

// Get implements fwk.NodeToStatusReader. A node without a verdict counts as
// UnschedulableAndUnresolvable, kube-scheduler's default for absent nodes: preemption does not try
// it.
func (v *verdicts) Get(node string) *fwk.Status {
	if status, ok := v.byNode[node]; ok {
		return status
	}
	return v.absent
}

// NodesForStatusCode implements fwk.NodeToStatusReader.
func (v *verdicts) NodesForStatusCode(lister fwk.NodeInfoLister, code fwk.Code) ([]fwk.NodeInfo, error) {
	all, err := lister.List()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(n fwk.NodeInfo) bool { return v.Get(n.Node().Name).Code() != code }), nil
}
