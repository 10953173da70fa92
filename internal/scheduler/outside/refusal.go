package outside

import (
	"slices"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Refusal is the error of a plugin that refuses to have a pod bound, at PreBind or Bind: the pod is
// unschedulable, and tried again after its back-off. Its message is upstream's, since events and
// conditions show it.
type Refusal struct {
	Plugin  string
	Reasons []string
}

// Error joins the reasons as a fwk.Status does.
func (r *Refusal) Error() string {
	status := fwk.NewStatus(fwk.Unschedulable, r.Reasons...)
	return status.Message()
}

// Unschedulable tells the scheduler that this is a verdict on the pod and not a failure.
func (r *Refusal) Unschedulable() bool { return true }

// verdicts are the filters' verdicts on all nodes, as PostFilter plugins read them. They are those
// of the attempt, and do not change while the plugin looks for victims.
type verdicts struct {
	byNode map[string]*fwk.Status // only nodes that were rejected
	absent *fwk.Status            // for all others, as in kube-scheduler
}

// newVerdicts converts an evaluation. Nodes that passed the filters have no entry.
func newVerdicts(e *decide.Evaluation) *verdicts {
	v := &verdicts{byNode: make(map[string]*fwk.Status, len(e.Nodes)), absent: fwk.NewStatus(fwk.UnschedulableAndUnresolvable)}
	for i := range e.Nodes {
		if n := &e.Nodes[i]; n.Rejection != nil {
			v.byNode[n.Node.Name] = statusOf(n.Rejection, n.Plugin)
		}
	}
	return v
}

// statusOf converts a rejection to the status that the plugin would have returned in
// kube-scheduler; the reverse of toRejection.
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
