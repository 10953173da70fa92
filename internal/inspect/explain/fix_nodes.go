// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// This file proposes changes of nodes: taints, cordons, labels, and an additional node. It offers
// no command for changes that require the node owner's knowledge, such as whether a label is true.

// fixTaints proposes tolerating or removing the taints that keep the pod off a node. It groups
// nodes with the same taints, because one toleration serves all of them.
func (f *fixer) fixTaints(plugin string, nodes []verdict) (edits []*edit) {
	type set struct {
		taints []taint
		nodes  []verdict
	}
	// The keys are the texts of the taints.
	sets := map[string]*set{}
	for _, v := range nodes {
		list := f.untoleratedBy(plugin, v.node)
		key := strings.Join(answer.Mapped(list, func(t taint) string { return t.ToString() }), ", ")
		if sets[key] == nil {
			sets[key] = &set{taints: list}
		}
		sets[key].nodes = append(sets[key].nodes, v)
	}
	for _, key := range sortedKeys(sets) {
		set := sets[key]
		// Taints are usually deliberate, so circumventing them is proposed last.
		size := 50 + 10*len(set.taints)
		if slices.ContainsFunc(set.taints, taint.ofState) {
			size += 30 // the node is unhealthy
		}
		where := set.nodes[0].node.Name
		if len(set.nodes) > 1 {
			where = fmt.Sprintf("%d nodes", len(set.nodes))
		}
		edits = append(edits, f.onPod("Tolerate", fmt.Sprintf("tolerate %s (on %s)", key, where), size, func(p *v1.Pod) {
			for _, t := range set.taints {
				p.Spec.Tolerations = append(p.Spec.Tolerations, tolerationOf(t.Taint))
			}
		}))
		const tried = 2 // the roomiest nodes of each set of taints
		for _, v := range sortRoomiest(set.nodes)[:min(tried, len(set.nodes))] {
			edits = append(edits, f.untaintEdit(v, set.taints))
		}
	}
	return edits
}

// tolerationOf returns a toleration of the taint's key and effect, and of its value, if any.
func tolerationOf(t *v1.Taint) v1.Toleration {
	if t.Value == "" {
		return v1.Toleration{Key: t.Key, Operator: v1.TolerationOpExists, Effect: t.Effect}
	}
	return v1.Toleration{Key: t.Key, Operator: v1.TolerationOpEqual, Value: t.Value, Effect: t.Effect}
}

// untaintEdit removes taints from a node. The node lifecycle controller would restore the taints of
// an unready node; in that case the proposed change is the node's recovery, without a command. A
// ready node with such a taint lacks a controller to remove it.
func (f *fixer) untaintEdit(v verdict, taints []taint) *edit {
	name := v.node.Name
	var names, removals, states []string
	stale := false
	for _, t := range taints {
		names = append(names, t.ToString())
		removals = append(removals, t.Key+":"+string(t.Effect)+"-") // in the syntax of kubectl taint
		switch {
		case !t.ofState():
		case slices.ContainsFunc(nodehealth.Outdated(f.w.Node(name)), func(o v1.Taint) bool { return t.MatchTaint(&o) }):
			stale = true // the node is ready, and the taint is of another state
		default:
			states = append(states, t.Key)
		}
	}
	alter := func(n *v1.Node) {
		n.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(have v1.Taint) bool {
			return slices.Contains(states, have.Key) || slices.ContainsFunc(taints, func(t taint) bool { return t.MatchTaint(&have) })
		})
	}

	// A recovery is also assumed to remove the node's other taints, because the pod fits only
	// without all of them.
	if len(states) > 0 {
		text := fmt.Sprintf("%s recovers, so that it is no longer tainted %s", name, strings.Join(states, ", "))
		return f.onNode("RecoverNode", name, text, "", 45, alter)
	}

	text := fmt.Sprintf("remove the taint %s from %s", strings.Join(names, ", "), name)
	if stale {
		text += ", which is ready: no node-lifecycle controller removes it"
	}
	return f.onNode("RemoveTaint", name, text, "kubectl taint nodes "+name+" "+strings.Join(removals, " "), 40+10*len(taints), alter)
}

// fixCordons proposes uncordoning one of the roomiest nodes, or tolerating cordons like DaemonSets.
func (f *fixer) fixCordons(_ string, nodes []verdict) (edits []*edit) {
	// Nodes are usually cordoned many at a time, and one is enough.
	const tried = 3
	for _, v := range sortRoomiest(nodes)[:min(tried, len(nodes))] {
		name := v.node.Name
		edits = append(edits, f.onNode("Uncordon", name, "uncordon "+name, "kubectl uncordon "+name, 8, func(n *v1.Node) {
			n.Spec.Unschedulable = false
			n.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints),
				func(t v1.Taint) bool { return t.Key == v1.TaintNodeUnschedulable })
		}))
	}
	return append(edits, f.onPod("Tolerate", "tolerate "+v1.TaintNodeUnschedulable+":NoSchedule, that is, cordons", 25, func(p *v1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{
			Key: v1.TaintNodeUnschedulable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule,
		})
	}))
}

// newNodes proposes adding a node like an existing one. It tries one node of each kind, smallest
// first, and proposes the first two that help. Nodes of one kind may differ in the label with the
// node's name.
func (f *fixer) newNodes(like []verdict) (edits []*edit) {
	kindOf := func(v verdict) cluster.Parts { return cluster.Parts{Labels: v.node.Labels, Size: v.node.Size} }
	kinds := answer.Mapped(answer.Grouped(like, kindOf), func(same []verdict) *v1.Node { return f.w.Node(same[0].node.Name) })
	// The smallest node that helps costs the least.
	slices.SortStableFunc(kinds, func(a, b *v1.Node) int {
		x, y := a.Status.Allocatable, b.Status.Allocatable
		return cmp.Or(x.Cpu().Cmp(*y.Cpu()), x.Memory().Cmp(*y.Memory()), cmp.Compare(a.Name, b.Name))
	})

	// Clusters have few kinds of nodes, but if a label has a different value on every node, each
	// node is a kind of its own.
	const tried, wanted = 24, 2
	for _, like := range kinds[:min(tried, len(kinds))] {
		e := &edit{
			Change: Change{Kind: "AddNode", Object: "node/" + like.Name, Text: "add one more node like " + like.Name},
			size:   60, add: simulate.NodeLike(like, like.Name+"-more"), like: like.Name,
		}
		if f.tryEdits(e) != "" {
			if edits = append(edits, e); len(edits) == wanted {
				break
			}
		}
	}

	return edits
}

// nodeAffinity proposes dropping the requirements unmet by a node, or adding a node that meets
// them. It proposes each set of requirements once, for the roomiest node, and at most four sets.
func (f *fixer) nodeAffinity(_ string, nodes []verdict) (edits []*edit) {
	seen := map[string]bool{}
	for _, v := range sortRoomiest(nodes) {
		// The pod requires both the node selector and the node affinity, so one edit relaxes both.
		missing := plugins.MissingLabels(f.pod, v.node)
		terms := f.unmetTerm(v)
		key := strings.Join(missing, ",")
		if terms != nil {
			key += fmt.Sprint("|", terms.term, terms.requirementText())
		}
		if seen[key] || len(missing) == 0 && terms == nil {
			continue
		}
		if seen[key] = true; len(seen) > 4 {
			break
		}
		var drops alterations
		var words []string
		size := 15 + 5*len(missing)
		if len(missing) > 0 {
			words = append(words, "drop the node selector "+strings.Join(missing, ", "))
			// Labels are formatted as key=value; the selector is indexed by key.
			drops = append(drops, func(p *v1.Pod) {
				for _, label := range missing {
					name, _, _ := strings.Cut(label, "=")
					delete(p.Spec.NodeSelector, name)
				}
			})
		}
		if terms != nil {
			words = append(words, "drop "+terms.requirementText()+" from the required node affinity")
			drops = append(drops, terms.dropFrom)
			size += 5 * len(terms.requirements)
		}
		edits = append(edits, f.onPod("RelaxNodeAffinity", strings.Join(words, ", and "), size, drops.alter))
		// Alternatively, propose a node that meets the requirements.
		if e := f.labelledNode(v, missing, terms); e != nil {
			edits = append(edits, e)
		}
	}

	return edits
}

// nodeFacts are the labels set by kubelets and cloud providers. Users do not set them on existing
// nodes.
var nodeFacts = map[string]bool{
	v1.LabelOSStable: true, v1.LabelArchStable: true, v1.LabelInstanceTypeStable: true, v1.LabelTopologyZone: true, v1.LabelTopologyRegion: true,
}

// labelledNode proposes adding a node with the labels required by the pod. It returns nil if labels
// cannot help. It does not propose labelling an existing node, because only the node's owner can
// judge whether the labels are true.
func (f *fixer) labelledNode(v verdict, missing []string, terms *unmet) *edit {
	wanted := map[string]string{}
	for _, label := range missing {
		key, value, _ := strings.Cut(label, "=")
		wanted[key] = value
	}
	if terms != nil {
		for _, r := range terms.requirements {
			switch {
			// Any of the values would do; propose the first.
			case r.Operator == v1.NodeSelectorOpIn && len(r.Values) > 0:
				wanted[r.Key] = r.Values[0]
			case r.Operator == v1.NodeSelectorOpExists:
				wanted[r.Key] = ""
			default:
				return nil
			}
		}
	}
	// The name of an added node cannot be chosen.
	if _, named := wanted[v1.LabelHostname]; named || len(wanted) == 0 {
		return nil
	}
	var words []string
	alternative := " (or label an existing node, if the label is true of it)"
	for _, key := range sortedKeys(wanted) {
		words = append(words, key+"="+wanted[key])
		if nodeFacts[key] {
			alternative = ""
		}
	}

	like := f.w.Node(v.node.Name)
	// Add the labels to a copy of the existing node, on which NodeLike models the new node.
	with := like.DeepCopy()
	with.Labels = labels.Merge(with.Labels, wanted)
	return &edit{
		Change: Change{
			Kind: "AddNode", Object: "node/" + like.Name, Patch: mergePatch(like, with, v1.Node{}),
			Text: fmt.Sprintf("add a node like %s with the label %s%s", like.Name, strings.Join(words, " "), alternative),
		},
		size: 55 + 5*len(words), add: simulate.NodeLike(with, like.Name+"-more"), like: like.Name,
	}
}

// taint is a taint that keeps a pod off a node. Its methods help to find a remedy.
type taint struct{ *v1.Taint }

// ofState reports whether the taint follows the node's state.
func (t taint) ofState() bool { return simulate.OfState(t.Taint) }

// untoleratedBy returns the taints causing the plugin's rejection of the node; nil if the plugin
// does not concern taints.
func (f *fixer) untoleratedBy(plugin string, n *cluster.Node) []taint {
	if p, ok := f.profile.Plugin(plugin).(plugins.TaintNamer); ok {
		return answer.Mapped(p.Untolerated(f.pod, n), func(t *v1.Taint) taint { return taint{t} })
	}
	return nil
}
