// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// fixer proposes changes that address the causes keeping the pod from running; search determines
// which of the changes help. A plugin declares the possible fixes of its rejections as a list of
// Fix, and the methods of fixer in the files fix_*.go implement them.
type fixer struct {
	*bench
	profile *plugins.Profile
	// judges are the pod's filters, prepared for the cluster without changes.
	judges   judges
	preempts bool // preemption makes room for the pod, so pods need not be deleted for it
}

// fixers implement the fixes declared by plugins. nodes are the nodes rejected by the plugin. Every
// Fix must be present, or a plugin declaring it would cause a panic.
var fixers = map[plugins.Fix]func(f *fixer, plugin string, nodes []verdict) []*edit{
	plugins.Tolerate:       (*fixer).fixTaints,
	plugins.Uncordon:       (*fixer).fixCordons,
	plugins.RelaxSelection: (*fixer).nodeAffinity,
	plugins.FreePort:       (*fixer).fixPorts,
	plugins.AskForLess:     (*fixer).lowerRequests,
	plugins.MakeRoom:       (*fixer).makeRoom,
	plugins.RelaxSpread:    (*fixer).fixSpread,
	plugins.RelaxAffinity:  (*fixer).podAffinity,
	plugins.ProvideVolumes: (*fixer).provideVolumes,
	plugins.MoveVolumes:    (*fixer).moveVolumes,
	plugins.FreeClaim:      (*fixer).freeClaim,
	plugins.FreeAttachment: (*fixer).freeAttachment,
	plugins.FreeDevices:    (*fixer).fixDevices,
}

// fixCause returns the changes that address a cause: the changes of all plugins that reject some of
// the nodes for this cause. A fix declared by several plugins runs once. Fixes run in the order of
// the values of Fix, independent of the profile. For example, for nodes rejected by
// NodeResourcesFit:
//
//	AskForLess  lower the cpu request from 2 to 1500m
//	MakeRoom    delete pod default/batch-1 from node-3
func (f *fixer) fixCause(causedBy string, nodes []verdict) (edits []*edit) {
	type fix struct {
		plugins.Fix
		plugin string
	}
	var fixes []fix

	for i := range f.judges {
		// In the order of the profile, so that the answer does not depend on map iteration.
		name := f.judges[i].name
		rejected := f.rejectedFor(causedBy, name, nodes)
		if len(rejected) == 0 {
			continue
		}
		plugin := f.profile.Plugin(name)
		if by, ok := plugin.(plugins.Fixer); ok {
			for _, kind := range by.Fixes() {
				if !slices.ContainsFunc(fixes, func(o fix) bool { return o.Fix == kind }) {
					fixes = append(fixes, fix{kind, name})
				}
			}
		}
		if p, ok := plugin.(plugins.Proposer); ok {
			edits = append(edits, f.proposedBy(p, rejected)...)
		}
	}

	slices.SortStableFunc(fixes, func(a, b fix) int { return cmp.Compare(a.Fix, b.Fix) })
	for _, one := range fixes {
		edits = append(edits, fixers[one.Fix](f, one.plugin, nodes)...)
	}
	return edits
}

// rejectedFor returns the nodes rejected by a plugin for a cause, if the plugin's own fixes apply
// to them. A plugin that merely shares the cause of another plugin leaves the fixes to that plugin.
func (f *fixer) rejectedFor(causedBy, plugin string, nodes []verdict) (list []*cluster.Node) {
	for i := range nodes {
		v := &nodes[i]
		if name, own := causeOf(f.profile, f.pod, v.node, plugin); own && name == causedBy && v.rejectedBy(plugin) {
			list = append(list, v.node)
		}
	}
	return list
}

// proposedBy returns the changes proposed by the plugin itself: out-of-tree plugins have no fixer
// method. It drops changes of nonexistent nodes.
func (f *fixer) proposedBy(by plugins.Proposer, nodes []*cluster.Node) (edits []*edit) {
	for _, p := range by.Propose(f.pod, f.object, nodes) {
		// A proposal changes the pod or a node.
		if p.Pod != nil {
			edits = append(edits, f.onPod(p.Kind, p.Text, p.Size, p.Pod))
		} else if p.Node != nil && f.w.Node(p.NodeName) != nil {
			edits = append(edits, f.onNode(p.Kind, p.NodeName, p.Text, p.Command, p.Size, p.Node))
		}
	}
	return edits
}
