// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

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

// This file proposes changes of the pod's own placement constraints: node affinity, topology
// spread, pod affinity and anti-affinity.

// unmet holds the requirements of a node affinity term that a node does not meet. Terms are
// alternatives, so the term with the fewest such requirements is chosen. A nil *unmet means that
// node affinity needs no change.
type unmet struct {
	// term is the index of the term.
	term         int
	requirements []v1.NodeSelectorRequirement
}

// requirementText lists the requirements in manifest notation.
func (u *unmet) requirementText() string {
	var words []string
	for i := range u.requirements {
		r := &u.requirements[i]
		word := r.Key + " " + string(r.Operator)
		if len(r.Values) > 0 {
			word += " " + strings.Join(r.Values, ",")
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// unmetTerm returns the term with the fewest requirements unmet by the node; nil if the node meets
// a term, or if all terms select nodes by name.
func (f *fixer) unmetTerm(v verdict) *unmet {
	a := f.pod.Spec().NodeAffinity
	if a == nil || a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	node := v.node.Object()
	var best *unmet
	for i, term := range a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if len(term.MatchFields) > 0 || len(term.MatchExpressions) == 0 {
			continue // a term that selects a node by name, as for DaemonSet pods, cannot be relaxed
		}
		u := &unmet{term: i, requirements: slices.Clone(term.MatchExpressions)}
		u.requirements = slices.DeleteFunc(u.requirements, func(r v1.NodeSelectorRequirement) bool { return nodeMeets(node, r) })
		// The node meets this term, so node affinity does not keep the pod off it.
		if len(u.requirements) == 0 {
			return nil
		}
		if best == nil || len(u.requirements) < len(best.requirements) {
			best = u
		}
	}
	return best
}

// nodeMeets reports whether a node meets one requirement, according to the upstream matcher.
func nodeMeets(node *v1.Node, r v1.NodeSelectorRequirement) bool {
	ok, err := nodeaffinity.NewLazyErrorNodeSelector(&v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{r}}},
	}).Match(node)
	return ok && err == nil
}

// dropFrom removes the requirements from the term. If that leaves the term empty, it removes the
// required node affinity as a whole, because an empty term would match no node instead of all.
func (u *unmet) dropFrom(p *v1.Pod) {
	affinity := p.Spec.Affinity.NodeAffinity
	required := affinity.RequiredDuringSchedulingIgnoredDuringExecution
	term := &required.NodeSelectorTerms[u.term]
	term.MatchExpressions = slices.DeleteFunc(term.MatchExpressions, func(r v1.NodeSelectorRequirement) bool {
		return slices.ContainsFunc(u.requirements, func(o v1.NodeSelectorRequirement) bool {
			return o.Key == r.Key && o.Operator == r.Operator && slices.Equal(o.Values, r.Values)
		})
	})
	if len(term.MatchExpressions) == 0 {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	}
}

// fixSpread proposes relaxing topology spread constraints. It proceeds from the smallest change to
// the largest: a higher maxSkew, excluding nodes or pods from the count, and preferring the spread
// instead of requiring it. For example, with 3, 1 and 0 pods in three zones, and the last zone
// full:
//
//	maxSkew 1    only the last zone may take a pod: 0+1-0 <= 1
//	maxSkew 2    the second may also take it: 1+1-0 <= 2
func (f *fixer) fixSpread(string, []verdict) (edits []*edit) {
	constraints := f.pod.Spec().TopologySpreadConstraints
	for i := range constraints {
		c := &constraints[i]
		// Preferred constraints do not reject nodes.
		if c.WhenUnsatisfiable != v1.DoNotSchedule {
			continue
		}
		// A pod may have several constraints; each is relaxed separately.
		name := "the spread over " + c.TopologyKey
		if e := f.leastSkew(i, c); e != nil {
			edits = append(edits, e)
		}
		// By default, nodes with untolerated taints are counted, and keep the minimum at zero.
		if ptr.Deref(c.NodeTaintsPolicy, "") != v1.NodeInclusionPolicyHonor {
			edits = append(edits, f.onPod("HonorTaints",
				name+": leave nodes that the pod does not tolerate out of the count (nodeTaintsPolicy: Honor)", 11,
				func(p *v1.Pod) {
					p.Spec.TopologySpreadConstraints[i].NodeTaintsPolicy = new(v1.NodeInclusionPolicyHonor)
				}))
		}
		// During a rollout, outgoing pods of the old revision are counted with the new ones and
		// skew the spread.
		if hash := "pod-template-hash"; f.object.Labels[hash] != "" && !slices.Contains(c.MatchLabelKeys, hash) {
			edits = append(edits, f.onPod("CountRevision",
				name+": count the pods of this revision only (matchLabelKeys: pod-template-hash)", 11, func(p *v1.Pod) {
					own := &p.Spec.TopologySpreadConstraints[i]
					own.MatchLabelKeys = append(own.MatchLabelKeys, hash)
				}))
		}
		edits = append(edits, f.onPod("SoftenSpread",
			name+": prefer it instead of requiring it (whenUnsatisfiable: ScheduleAnyway)", 20, func(p *v1.Pod) {
				own := &p.Spec.TopologySpreadConstraints[i]
				// The API server accepts minDomains with DoNotSchedule only.
				own.WhenUnsatisfiable, own.MinDomains = v1.ScheduleAnyway, nil
			}))
	}

	return edits
}

// leastSkew finds the smallest maxSkew that lets the pod run; nil if none does. It doubles the
// increase until the pod runs, and then bisects.
func (f *fixer) leastSkew(i int, c *v1.TopologySpreadConstraint) *edit {
	with := func(skew int32) *edit {
		text := fmt.Sprintf("the spread over %s: raise maxSkew from %d to %d", c.TopologyKey, c.MaxSkew, skew)
		return f.onPod("RaiseMaxSkew", text, 10+int(min(skew-c.MaxSkew, 9)),
			func(p *v1.Pod) { p.Spec.TopologySpreadConstraints[i].MaxSkew = skew })
	}

	const most = 1 << 16
	if c.MaxSkew >= most {
		return nil // a larger one does not help, and doubling could overflow
	}
	// After the first loop, the pod runs with high and not with low.
	low, high := c.MaxSkew, c.MaxSkew+1
	for f.tryEdits(with(high)) == "" {
		if low, high = high, 2*high; high > most {
			return nil
		}
	}

	between := sort.Search(int(high-low-1), func(i int) bool { return f.tryEdits(with(low+1+int32(i))) != "" })
	return with(low + 1 + int32(between))
}

// podAffinity proposes preferring a required term, deleting the pods that violate it, or starting
// the pod that it requires.
func (f *fixer) podAffinity(plugin string, nodes []verdict) (edits []*edit) {
	a := f.object.Spec.Affinity
	if a != nil && a.PodAffinity != nil {
		for i, t := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			edits = append(edits, f.softenTerm("SoftenPodAffinity", "affinity", t, func(p *v1.Pod) {
				own := p.Spec.Affinity.PodAffinity
				soften(t, &own.PreferredDuringSchedulingIgnoredDuringExecution, &own.RequiredDuringSchedulingIgnoredDuringExecution, i)
			}))
			// Alternatively, create the pod that this pod requires nearby.
			if e := f.addCompanion(nodes, &t); e != nil {
				edits = append(edits, e)
			}
		}
	}
	if a != nil && a.PodAntiAffinity != nil {
		for i, t := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			edits = append(edits, f.softenTerm("SoftenPodAntiAffinity", "anti-affinity", t, func(p *v1.Pod) {
				own := p.Spec.Affinity.PodAntiAffinity
				soften(t, &own.PreferredDuringSchedulingIgnoredDuringExecution, &own.RequiredDuringSchedulingIgnoredDuringExecution, i)
			}))
		}
	}
	return append(edits, f.fixAntiAffinity(plugin, nodes)...)
}

// softenTerm returns an edit that prefers a required term.
func (f *fixer) softenTerm(kind, words string, t v1.PodAffinityTerm, alter func(*v1.Pod)) *edit {
	text := fmt.Sprintf("prefer the pod %s to %s over %s instead of requiring it", words, selectorText(t.LabelSelector), t.TopologyKey)
	return f.onPod(kind, text, 20, alter)
}

// soften moves the term at index i from required to preferred.
func soften(t v1.PodAffinityTerm, preferred *[]v1.WeightedPodAffinityTerm, required *[]v1.PodAffinityTerm, i int) {
	*preferred = append(*preferred, v1.WeightedPodAffinityTerm{Weight: 100, PodAffinityTerm: t})
	*required = slices.Delete(*required, i, i+1)
}

// selectorText formats a selector like kubectl. A missing selector selects no pods, and an empty
// selector selects all.
func selectorText(s *metav1.LabelSelector) string {
	if s == nil {
		return "no pods"
	}
	if text := metav1.FormatLabelSelector(s); text != "<none>" {
		return text
	}
	return "all pods"
}
