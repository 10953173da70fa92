package outside

import (
	"errors"
	"fmt"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// filter is a plugin at PreFilter, at Filter, or at both. In Berth's terms PreFilter's result is
// the part of a Judge that concerns the pod as a whole (All, Only), and Filter is its func for
// single nodes.
type filter struct {
	f    *framework
	name string
	pre  fwk.PreFilterPlugin // nil: not at PreFilter
	node fwk.FilterPlugin    // nil: not at Filter
}

var _ plugins.Filter = &filter{}

// Name is the plugin's name in the configuration, which messages and metrics use.
func (p *filter) Name() string { return p.name }

// Reads says that everything may matter except hypothetical changes of other nodes: the plugin is
// asked again for every pod. What an out-of-tree plugin reads cannot be known, so no verdict of it
// is ever carried from one pod to another that looks the same.
func (p *filter) Reads() plugins.Part {
	return plugins.Labels | plugins.Taints | plugins.Images | plugins.Features | plugins.Identity | plugins.Contents | plugins.Objects
}

// Filter calls PreFilter, once per cycle, and returns a judge that calls Filter. If it is called
// again for a cluster with hypothetical changes, PreFilter is not, as upstream: its verdict on the
// pod as a whole no longer counts, but the nodes to which it limits the pod do.
func (p *filter) Filter(c *cluster.Cluster, waiting *cluster.Pod) plugins.Judge {
	y := p.f.sessionOf(c, waiting)
	// PreFilter may write the state that AddPod, RemovePod and Filter read later; a second call in
	// the same cycle would overwrite it.
	judge, asked := y.narrowed[p.name]
	if !asked {
		judge = p.preFilter(y)
		y.narrowed[p.name] = judge
	}
	if c.Log.Len() != y.position {
		judge = plugins.Judge{Only: judge.Only}
	}
	if p.node != nil && !y.state.skipFilter.Has(p.node.Name()) {
		judge.Node = p.judgeNodes(y)
	}
	return judge
}

// preFilter calls PreFilter, in which the plugin may call back (RunFilterPlugins), and converts the
// result. A plugin that skips is not called at Filter in this cycle, nor at AddPod and RemovePod.
func (p *filter) preFilter(y *session) plugins.Judge {
	if p.pre == nil || len(y.snapshot.list) == 0 { // as upstream, no plugin is called if there is no node
		return plugins.Judge{}
	}
	var result *fwk.PreFilterResult
	var status *fwk.Status
	y.whileOpen(func() { result, status = p.pre.PreFilter(y.ctx, y.state, y.pod, y.snapshot.list) })
	switch {
	case status.IsSkip():
		y.state.skipFilter.Insert(p.pre.Name())
		return plugins.Judge{}
	case status.IsRejected():
		return plugins.Judge{All: toRejection(status, p.name)}
	case !status.IsSuccess():
		return plugins.Judge{Err: statusError(status, "PreFilter")}
	case result.AllNodes():
		return plugins.Judge{}
	}
	only := make(map[string]bool, len(result.NodeNames))
	for name := range result.NodeNames {
		only[name] = true
	}
	return plugins.Judge{Only: only}
}

// judgeNodes judges nodes; without hypothetical changes, each once per cycle.
func (p *filter) judgeNodes(y *session) func(n *cluster.Node) *plugins.Rejection {
	if len(y.verdicts[p.name]) < len(y.c.Nodes) {
		y.verdicts[p.name] = make([]verdict, len(y.c.Nodes))
	}
	known := y.verdicts[p.name] // one goroutine per node, and never the same node twice at a time
	return func(n *cluster.Node) *plugins.Rejection {
		v := y.viewOf(n)
		if v.verdicts != nil { // the node has hypothetical changes
			said, asked := v.verdicts[p.name]
			if !asked {
				said = p.askPlugin(y, v)
				v.verdicts[p.name] = said
			}
			return said
		}
		if r := &known[n.Index]; !r.known {
			r.known, r.rejection = true, p.askPlugin(y, v)
		}
		return known[n.Index].rejection
	}
}

// askPlugin calls Filter for one view of a node. It may run on many goroutines at once, as in
// kube-scheduler. A node whose view could not be made, since AddPod or RemovePod failed, fails the
// attempt with that error.
func (p *filter) askPlugin(y *session, v *view) *plugins.Rejection {
	if v.err != nil {
		return &plugins.Rejection{Err: v.err}
	}
	status := p.node.Filter(y.ctx, v.state, y.pod, v.info)
	switch {
	case status.IsSuccess():
		return nil
	case status.IsRejected():
		return toRejection(status, p.name)
	}
	return &plugins.Rejection{Err: statusError(status, "Filter")}
}

// toRejection converts a status. Out-of-tree plugins have no codes, so the code is the plugin's
// name.
func toRejection(status *fwk.Status, plugin string) *plugins.Rejection {
	return &plugins.Rejection{
		Code: plugin, Reasons: slices.Clone(status.Reasons()),
		Unresolvable: status.Code() == fwk.UnschedulableAndUnresolvable, Pending: status.Code() == fwk.Pending,
	}
}

// statusError is the error of a status that is neither a success nor a rejection. It is never nil,
// also for a code that makes no sense at the extension point.
func statusError(status *fwk.Status, point string) error {
	if err := status.AsError(); err != nil {
		if err.Error() == "" {
			return errors.New("it failed without a message")
		}
		return err
	}
	return fmt.Errorf("status %s is not one that %s can have", status.Code(), point)
}
