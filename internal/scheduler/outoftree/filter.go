// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"errors"
	"fmt"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// filter is a plugin at PreFilter, at Filter, or at both. In Berth's terms, PreFilter's result is
// the part of a Judge about the pod as a whole (All, Only), and Filter is the Judge's function for
// single nodes.
type filter struct {
	f    *framework
	name string
	pre  fwk.PreFilterPlugin // nil: not at PreFilter
	node fwk.FilterPlugin    // nil: not at Filter
}

var _ plugins.Filter = &filter{}

// Name is the plugin's name in the configuration, used in messages and metrics.
func (p *filter) Name() string { return p.name }

// Reads declares that every input may matter except hypothetical changes of other nodes. The inputs
// of an out-of-tree plugin are unknown, so its verdicts are never carried from one pod to an
// identical one.
func (p *filter) Reads() plugins.Part {
	return plugins.Labels | plugins.Taints | plugins.Images | plugins.Features | plugins.Identity | plugins.Contents | plugins.Objects
}

// Filter calls PreFilter, once per cycle, and returns a judge that calls Filter. For a cluster with
// hypothetical changes, PreFilter is not repeated, like upstream: its verdict on the pod as a whole
// no longer counts, but its restriction of the nodes does.
func (p *filter) Filter(c *cluster.Cluster, waiting *cluster.Pod) plugins.Judge {
	y := p.f.sessionOf(c, waiting)
	// PreFilter may write the state read later by AddPod, RemovePod and Filter; a second call in
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

// preFilter calls PreFilter and converts the result. During the call, the plugin may call back
// (RunFilterPlugins). A plugin that skips is not called at Filter in this cycle, nor at AddPod and
// RemovePod.
func (p *filter) preFilter(y *session) plugins.Judge {
	if p.pre == nil || len(y.snapshot.list) == 0 { // like upstream, plugins are not called without nodes
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

// judgeNodes returns a function that judges nodes. For a node without hypothetical changes, it
// calls the plugin only once per cycle.
func (p *filter) judgeNodes(y *session) func(n *cluster.Node) *plugins.Rejection {
	if len(y.verdicts[p.name]) < len(y.c.Nodes) {
		y.verdicts[p.name] = make([]verdict, len(y.c.Nodes))
	}

	known := y.verdicts[p.name] // safe without a lock, because each node is judged by one goroutine
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

// askPlugin calls Filter for one view of a node. It may run on many goroutines concurrently, like
// in kube-scheduler. If AddPod or RemovePod failed for the view of a node, the attempt fails with
// that error.
func (p *filter) askPlugin(y *session, v *view) *plugins.Rejection {
	if v.err != nil {
		return &plugins.Rejection{Err: v.err}
	}
	return rejectionOf(p.node.Filter(y.ctx, v.state, y.pod, v.info), p.name, "Filter")
}

// toRejection converts a status. Out-of-tree plugins do not define codes, so the plugin's name is
// the code.
func toRejection(status *fwk.Status, plugin string) *plugins.Rejection {
	return &plugins.Rejection{
		Code: plugin, Reasons: slices.Clone(status.Reasons()),
		Unresolvable: status.Code() == fwk.UnschedulableAndUnresolvable, Pending: status.Code() == fwk.Pending,
	}
}

// statusError returns the error of a status that is neither a success nor a rejection. It is never
// nil, even for a code that makes no sense at the extension point.
func statusError(status *fwk.Status, point string) error {
	if err := status.AsError(); err != nil {
		if err.Error() == "" {
			return errors.New("it failed without a message")
		}
		return err
	}
	return fmt.Errorf("status %s is not one that %s can have", status.Code(), point)
}
