// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// termGenerator draws the affinity terms and selectors of pods and volumes. It keeps no state: all
// results become fields of the caller's object.
type termGenerator struct {
	*dice
	w *World
}

func (g *termGenerator) drawAffinity(pod *v1.Pod) {
	if g.hasLeaning("node affinity") && g.withChance(0.3) {
		pod.Spec.NodeSelector = map[string]string{pickOne(g, "disk", "disk", v1.LabelTopologyZone): pickOne(g, "ssd", "z1", "")}
		if g.withChance(0.5) {
			pod.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		}
	}

	a := &v1.Affinity{}
	if g.hasLeaning("node affinity") {
		a.NodeAffinity = g.nodeAffinity()
	}

	if g.hasLeaning("pod affinity") {
		a.PodAffinity = &v1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  g.podTerms(pod, 0.35),
			PreferredDuringSchedulingIgnoredDuringExecution: g.weightedPodTerms(pod),
		}
	}

	if g.hasLeaning("pod affinity") {
		a.PodAntiAffinity = &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  g.podTerms(pod, 0.4),
			PreferredDuringSchedulingIgnoredDuringExecution: g.weightedPodTerms(pod),
		}
	}

	if a.NodeAffinity != nil || a.PodAffinity != nil || a.PodAntiAffinity != nil || g.withChance(0.05) {
		pod.Spec.Affinity = a
	}
}

func (g *termGenerator) nodeAffinity() *v1.NodeAffinity {
	a := &v1.NodeAffinity{}
	if g.withChance(0.5) {
		a.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{}
		fields := g.withChance(0.15)
		for range 1 + g.drawFew(3) {
			terms := &a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			*terms = append(*terms, g.nodeTerm(fields || g.withChance(0.1)))
		}
	}
	for range g.drawBetween(0, 3) {
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
			v1.PreferredSchedulingTerm{Weight: int32(pickOne(g, 1, 1, 10, 50, 100)), Preference: g.nodeTerm(g.withChance(0.1))})
	}
	return a
}

func (g *termGenerator) nodeTerm(fields bool) (t v1.NodeSelectorTerm) {
	if fields {
		for range g.drawBetween(1, 2) {
			r := v1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn,
				Values: []string{pickOne(g, g.w.Nodes...).Name}}
			switch g.IntN(8) {
			case 0:
				r.Operator = v1.NodeSelectorOpNotIn
			case 1:
				r.Values = []string{"unknown-node"}
			}
			t.MatchFields = append(t.MatchFields, r)
			if g.withChance(0.7) {
				break
			}
		}
		if g.withChance(0.7) {
			return t
		}
	}

	for range g.drawBetween(0, 2) {
		t.MatchExpressions = append(t.MatchExpressions, g.nodeRequirement())
	}
	if len(t.MatchExpressions) == 0 && g.withChance(0.7) {
		t.MatchExpressions = append(t.MatchExpressions, g.nodeRequirement())
	}
	return t
}

func (g *termGenerator) nodeRequirement() v1.NodeSelectorRequirement {
	r := v1.NodeSelectorRequirement{
		Key: pickOne(g, "disk", "rack", v1.LabelTopologyZone, v1.LabelHostname, "app", "nowhere"),
		Operator: pickOne(g, v1.NodeSelectorOpIn, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists,
			v1.NodeSelectorOpDoesNotExist),
	}
	if g.withChance(0.15) {
		r.Key, r.Operator = "rack", pickOne(g, v1.NodeSelectorOpGt, v1.NodeSelectorOpLt)
	}
	switch r.Operator {
	case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
		r.Values = g.valuesOf(r.Key)
	case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
		r.Values = []string{pickOne(g, "0", "1", "2", "5")}
		if g.hasLeaning("odd") && g.withChance(0.2) {
			r.Values = []string{"many"} // the API server accepts it
		}
	}
	return r
}

func (g *termGenerator) valuesOf(key string) []string {
	values := map[string][]string{
		"disk": {"ssd", "hdd", ""}, "rack": {"1", "2", "10"}, v1.LabelTopologyZone: {"z1", "z2", "z3", ""},
		v1.LabelHostname: {"node-00", "node-01", "node-02", "node-05"}, "app": {"web", "db", "cache", ""},
	}[key]
	if values == nil {
		values = []string{"x", "y"}
	}
	if drawn := drawSome(g, 0.5, values...); len(drawn) > 0 {
		return drawn
	}
	return values[:1]
}

var topologyKeys = []string{v1.LabelHostname, v1.LabelHostname, v1.LabelTopologyZone, v1.LabelTopologyZone,
	v1.LabelTopologyRegion, "rack", "disk", "nowhere"}

// moreKeys lists labels that the nodes of some worlds have. Terms of the pods in these worlds may
// use all of them.
var moreKeys = []string{"k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"}

func (g *termGenerator) topologyKey() string {
	if g.hasLeaning("keys") {
		return pickOne(g, moreKeys...)
	}
	return pickOne(g, topologyKeys...)
}

func (g *termGenerator) podTerms(pod *v1.Pod, p float64) (terms []v1.PodAffinityTerm) {
	for g.withChance(p) && len(terms) < 3 {
		terms = append(terms, g.podTerm(pod))
	}
	return terms
}

func (g *termGenerator) weightedPodTerms(pod *v1.Pod) (terms []v1.WeightedPodAffinityTerm) {
	for g.withChance(0.5) && len(terms) < 3 {
		terms = append(terms, v1.WeightedPodAffinityTerm{Weight: int32(pickOne(g, 1, 1, 10, 100)), PodAffinityTerm: g.podTerm(pod)})
	}
	if g.hasLeaning("keys") && g.withChance(0.2) {
		for _, key := range moreKeys {
			term := v1.WeightedPodAffinityTerm{Weight: int32(pickOne(g, 1, 1, 10, 100)), PodAffinityTerm: g.podTerm(pod)}
			term.PodAffinityTerm.TopologyKey = key
			terms = append(terms, term)
		}
	}
	return terms
}

func (g *termGenerator) podTerm(pod *v1.Pod) v1.PodAffinityTerm {
	t := v1.PodAffinityTerm{TopologyKey: g.topologyKey(), LabelSelector: g.drawSelector()}
	if g.withChance(0.4) {
		t.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Labels["app"]}}
	}
	if g.withChance(0.05) {
		t.LabelSelector = nil
	}
	if g.withChance(0.2) {
		t.Namespaces = drawSome(g, 0.5, namespaceNames...)
	}
	if g.withChance(0.2) {
		t.NamespaceSelector = pickOne(g, &metav1.LabelSelector{},
			&metav1.LabelSelector{MatchLabels: map[string]string{"team": pickOne(g, "a", "b")}},
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team",
				Operator: metav1.LabelSelectorOpDoesNotExist}}})
	}
	if rev, ok := pod.Labels["rev"]; ok && t.LabelSelector != nil && g.withChance(0.3) {
		// The API server keeps the key, and merges its value into the selector.
		t.MatchLabelKeys = []string{"rev"}
		t.LabelSelector = t.LabelSelector.DeepCopy()
		t.LabelSelector.MatchExpressions = append(t.LabelSelector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: "rev", Operator: metav1.LabelSelectorOpIn, Values: []string{rev}})
	}
	if tier, ok := pod.Labels["tier"]; ok && t.LabelSelector != nil && g.withChance(0.2) {
		t.MismatchLabelKeys = []string{"tier"}
		t.LabelSelector = t.LabelSelector.DeepCopy()
		t.LabelSelector.MatchExpressions = append(t.LabelSelector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: []string{tier}})
	}
	return t
}

// drawSelector draws a selector of pods: an empty selector, labels, or expressions.
func (g *termGenerator) drawSelector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if g.hasLeaning("unique") && g.serial > 0 { // an existing or future pod
		s.MatchLabels = map[string]string{"pod": fmt.Sprintf("%s-%d", pickOne(g, "run", "wait"), 1+g.IntN(g.serial+3))}
		return s
	}
	if g.withChance(0.07) {
		return s
	}
	if g.withChance(0.65) {
		s.MatchLabels = map[string]string{"app": pickOne(g, "web", "db", "cache", "")}
		if g.withChance(0.2) {
			s.MatchLabels["tier"] = pickOne(g, "front", "back")
		}
		return s
	}
	for range g.drawBetween(1, 2) {
		r := metav1.LabelSelectorRequirement{
			Key: pickOne(g, "app", "tier", "rev"),
			Operator: pickOne(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists,
				metav1.LabelSelectorOpDoesNotExist),
		}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = map[string][]string{"app": {"web", "cache"}, "tier": {"front"}, "rev": {"1", "3"}}[r.Key]
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func (g *termGenerator) drawSpread(pod *v1.Pod) {
	seen := map[string]bool{}
	for g.hasLeaning("spread") && len(pod.Spec.TopologySpreadConstraints) < 4 {
		c := v1.TopologySpreadConstraint{
			MaxSkew: int32(pickOne(g, 1, 1, 2, 3, 5)), TopologyKey: g.topologyKey(),
			WhenUnsatisfiable: pickOne(g, v1.DoNotSchedule, v1.ScheduleAnyway), LabelSelector: g.drawSelector(),
		}
		if g.withChance(0.6) {
			c.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Labels["app"]}}
		}
		if g.withChance(0.04) {
			c.LabelSelector = nil
		}
		if c.WhenUnsatisfiable == v1.DoNotSchedule && g.withChance(0.3) {
			c.MinDomains = ptr.To(int32(g.drawBetween(1, 5)))
		}
		if g.withChance(0.3) {
			c.NodeAffinityPolicy = ptr.To(pickOne(g, v1.NodeInclusionPolicyHonor, v1.NodeInclusionPolicyIgnore))
		}
		if g.withChance(0.3) {
			c.NodeTaintsPolicy = ptr.To(pickOne(g, v1.NodeInclusionPolicyHonor, v1.NodeInclusionPolicyIgnore))
		}
		if c.LabelSelector != nil && g.withChance(0.2) {
			c.MatchLabelKeys = drawSome(g, 0.5, "rev", "tier", "nowhere")
			if _, both := c.LabelSelector.MatchLabels["tier"]; both {
				c.MatchLabelKeys = nil // the API server refuses a key that is in both
			}
		}
		if id := c.TopologyKey + string(c.WhenUnsatisfiable); !seen[id] {
			seen[id] = true
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, c)
		}
	}
}
