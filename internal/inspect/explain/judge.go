// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// judges holds all filters of a profile for one pod. The scheduler stops at the first filter that
// rejects a node. An explanation runs all filters, since fixing one of two faults does not make the
// node feasible.
type judges []judge

// judge is one filter's prepared state for the pod, with the filter's name.
type judge struct {
	name string
	plugins.Judge
}

// notSelected rejects nodes outside a plugin's preselection. Removing pods cannot resolve this
// rejection.
var notSelected = &plugins.Rejection{Code: "NotSelected", Unresolvable: true,
	Reasons: []string{"node(s) didn't satisfy the pod's choice of nodes"}}

// judgesOf prepares all filters of the profile for the pod. The result is valid for the current
// state of the cluster: prepare it again after a change.
func judgesOf(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod) (judges, error) {
	var list judges
	for _, f := range profile.Filters {
		j := f.Filter(c, p)
		if j.Err != nil {
			return nil, fmt.Errorf("%s cannot judge the pod: %w", f.Name(), j.Err)
		}
		list = append(list, judge{f.Name(), j})
	}
	return list, nil
}

// rejectionOn returns the judge's verdict on a node: nil if the node is feasible. A filter may
// reject all nodes (All), select some (Only), or judge each (Node).
func (j *judge) rejectionOn(n *cluster.Node) *plugins.Rejection {
	switch {
	case j.All != nil:
		return j.All
	case j.Only != nil && !j.Only[n.Name]:
		return notSelected
	case j.Node == nil:
		return nil
	}
	return j.Node(n)
}

// verdict has all rejections of a node, in the order of the profile's filters; empty for a feasible
// node.
type verdict struct {
	node       *cluster.Node
	rejections []rejection
}

// rejection is a plugin's reason for rejecting a node.
type rejection struct {
	plugin string
	*plugins.Rejection
}

// judgeNodes runs every filter on every node, and returns the nodes sorted by name. It takes none
// of the shortcuts of a scheduling decision.
func (list judges) judgeNodes(c *cluster.Cluster) []verdict {
	all := make([]verdict, 0, c.Len())
	for _, n := range c.Nodes {
		if n == nil {
			continue
		}
		v := verdict{node: n}
		for i := range list {
			if r := list[i].rejectionOn(n); r != nil {
				v.rejections = append(v.rejections, rejection{list[i].name, r})
			}
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b verdict) int { return cmp.Compare(a.node.Name, b.node.Name) })
	return all
}

// rejectedBy reports whether the plugin rejects the node, for any reason.
func (v *verdict) rejectedBy(plugin string) bool {
	return slices.ContainsFunc(v.rejections, func(r rejection) bool { return r.plugin == plugin })
}

// causesOf lists the plugins rejecting the node. Plugins with the same cause, such as a cordon that
// is also a taint, count once: one change resolves both.
func (v *verdict) causesOf(profile *plugins.Profile, p *cluster.Pod) []string {
	var names []string
	for _, r := range v.rejections {
		if name, _ := causeOf(profile, p, v.node, r.plugin); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// causeOf returns the name under which a plugin's rejection of a node counts: the plugin itself, or
// another filter of the profile that rejects the node for the same cause. own reports whether to
// try the plugin's own fixes.
//
//	cordoned node: NodeUnschedulable rejects, and TaintToleration for the taint -> one cause
func causeOf(profile *plugins.Profile, p *cluster.Pod, n *cluster.Node, plugin string) (name string, own bool) {
	s, ok := profile.Plugin(plugin).(plugins.Sharer)
	if !ok {
		return plugin, true
	}
	name, own = s.Shares(p, n)
	if !slices.ContainsFunc(profile.Filters, func(f plugins.Filter) bool { return f.Name() == name }) {
		return plugin, true
	}
	return name, own
}

// details describe rejections in terms of the objects involved, by plugin. Each plugin prepares its
// details once, on first use: most explanations need few of them, and each may scan the whole
// cluster.
type details struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	pod     *cluster.Pod
	said    map[string]func(*cluster.Node) string
}

// detailOf returns a plugin's details on its rejection of a node; empty if the plugin provides
// none.
func (d *details) detailOf(n *cluster.Node, plugin string) string {
	say, asked := d.said[plugin]
	if by, ok := d.profile.Plugin(plugin).(plugins.Detailer); ok && !asked {
		say = by.Detail(d.c, d.pod)
		d.said[plugin] = say
	}
	if say == nil {
		return ""
	}
	return say(n)
}
