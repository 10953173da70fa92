// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// TestClassGivesBackWhatIsWritten verifies that affinity and spread constraints, which are kept in
// parsed form, are unchanged when converted back to API objects.
func TestClassGivesBackWhatIsWritten(t *testing.T) {
	rebuilt, kept := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		pod := examplePod()
		pod.Labels = map[string]string{"app": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app"), "tier": "x"}
		pod.Spec.Affinity = drawAffinity(t)
		for range rapid.IntRange(0, 2).Draw(t, "constraints") {
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, drawConstraint(t))
		}
		want := pod.DeepCopy()

		class := New().Pending(pod).Class
		object := class.Spec.Object()
		if !equality.Semantic.DeepEqual(object.Affinity, want.Spec.Affinity) {
			t.Fatalf("the affinity is %v, want %v", object.Affinity, want.Spec.Affinity)
		}
		if !equality.Semantic.DeepEqual(object.TopologySpreadConstraints, want.Spec.TopologySpreadConstraints) {
			t.Fatalf("the constraints are %v, want %v", object.TopologySpreadConstraints, want.Spec.TopologySpreadConstraints)
		}
		if class.HasAffinity() && class.Terms.written == nil {
			rebuilt++
		} else if class.HasAffinity() {
			kept++
		}
	})
	if rebuilt == 0 || kept == 0 {
		t.Errorf("%d affinities were rebuilt, %d kept as written", rebuilt, kept)
	}
}

func drawSelector(t *rapid.T) *metav1.LabelSelector {
	labels := []map[string]string{nil, {"app": "a"}, {"app": "a", "tier": "x"}, {"app": "b"}, {"tier": "_x"}}
	switch rapid.IntRange(0, 5).Draw(t, "selector") {
	case 0:
		return nil
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"a"}}}}
	}
	return &metav1.LabelSelector{MatchLabels: labels[rapid.IntRange(0, len(labels)-1).Draw(t, "labels")]}
}

func drawTerms(t *rapid.T) (list []v1.PodAffinityTerm) {
	for range rapid.IntRange(0, 2).Draw(t, "terms") {
		term := v1.PodAffinityTerm{
			TopologyKey: rapid.SampledFrom([]string{"zone", "host"}).Draw(t, "key"), LabelSelector: drawSelector(t), NamespaceSelector: drawSelector(t),
		}
		if rapid.IntRange(0, 9).Draw(t, "namespaces") == 0 {
			term.Namespaces = []string{"other", "default"}
		}
		if rapid.IntRange(0, 9).Draw(t, "keys") == 0 {
			term.MatchLabelKeys = []string{"app"}
		}
		list = append(list, term)
	}
	return list
}

func drawAffinity(t *rapid.T) *v1.Affinity {
	a := &v1.Affinity{}
	weighted := func() (list []v1.WeightedPodAffinityTerm) {
		for i, term := range drawTerms(t) {
			list = append(list, v1.WeightedPodAffinityTerm{Weight: int32(i + 1), PodAffinityTerm: term})
		}
		return list
	}
	switch rapid.IntRange(0, 4).Draw(t, "affinity") {
	case 0:
		return nil
	case 1:
		a.NodeAffinity = &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{Weight: 1}}}
	case 2:
		a.PodAffinity = &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: drawTerms(t)}
	case 3:
		a.PodAntiAffinity = &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted()}
	case 4:
		a.PodAffinity = &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted()}
		a.PodAntiAffinity = &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: drawTerms(t)}
	}
	return a
}

func drawConstraint(t *rapid.T) v1.TopologySpreadConstraint {
	c := v1.TopologySpreadConstraint{
		MaxSkew: rapid.Int32Range(1, 2).Draw(t, "skew"), TopologyKey: rapid.SampledFrom([]string{"zone", "host"}).Draw(t, "key"),
		WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: drawSelector(t),
	}
	policies := []*v1.NodeInclusionPolicy{nil, new(v1.NodeInclusionPolicyHonor), new(v1.NodeInclusionPolicyIgnore)}
	c.NodeAffinityPolicy, c.NodeTaintsPolicy = policies[rapid.IntRange(0, 2).Draw(t, "affinity policy")], policies[rapid.IntRange(0, 2).Draw(t, "taints policy")]
	if rapid.Bool().Draw(t, "by revision") {
		c.MatchLabelKeys = []string{"app"}
	}
	return c
}

// TestClassKeepsLabels verifies that labels are sorted, and equal to the original map.
func TestClassKeepsLabels(t *testing.T) {
	pod := examplePod()
	pod.Labels = map[string]string{}
	for i := range 20 {
		pod.Labels[fmt.Sprint("k", i*7%20)] = fmt.Sprint(i)
	}
	own := New().Pending(pod).Class.Labels
	for key, value := range pod.Labels {
		if got, has := own.Lookup(key); !has || got != value || !own.Has(key) || own.Get(key) != value {
			t.Errorf("label %s is %s, want %s", key, got, value)
		}
	}
	if own.Has("k") || own.Has("zzz") || own.Len() != len(pod.Labels) || !equality.Semantic.DeepEqual(own.Map(), pod.Labels) {
		t.Errorf("the labels are %v, want %v", own.Map(), pod.Labels)
	}
	if !slices.IsSortedFunc(own.List(), func(a, b Label) int { return slices.Compare([]string{a.Key}, []string{b.Key}) }) {
		t.Errorf("not sorted: %v", own.List())
	}
}
