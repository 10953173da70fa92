// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestNodeAffinityAgreesWithTheLibrary requires a node to match, and to score, exactly like its
// object in k8s.io/component-helpers, for any terms including broken ones.
func TestNodeAffinityAgreesWithTheLibrary(t *testing.T) {
	plugin, _ := NewNodeAffinity(nil)
	rapid.Check(t, func(t *rapid.T) {
		c := cluster.New()
		node := c.SetNode(drawNode(t, "a"))
		pod := drawAffinePod(t)
		waiting := c.Pending(pod)

		want, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node.Object())
		judge := plugin.Filter(c, waiting)
		got := judge.All == nil && (judge.Only == nil || judge.Only[node.Name]) && (judge.Node == nil || judge.Node(node) == nil)
		if got != want {
			t.Errorf("matches: %t, the library says %t", got, want)
		}

		preferred := pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		terms, err := nodeaffinity.NewPreferredSchedulingTerms(preferred)
		scoring := plugin.Score(c, waiting, nil)
		switch {
		case (err != nil) != (scoring.Err != nil):
			t.Errorf("error %v, the library says %v", scoring.Err, err)
		case err == nil && scoring.Node != nil:
			if score, _ := scoring.Node(node); score != terms.Score(node.Object()) {
				t.Errorf("scores %d, the library says %d", score, terms.Score(node.Object()))
			}
		}
	})
}

// TestNodesWithEqualLabelsAreJudgedAlike verifies that a node's name and host name do not affect
// the verdict, unless ReadsFor includes the identity. The fast path judges all such nodes with one
// call.
func TestNodesWithEqualLabelsAreJudgedAlike(t *testing.T) {
	plugin, _ := NewNodeAffinity(nil)
	alike := 0
	rapid.Check(t, func(t *rapid.T) {
		c := cluster.New()
		object := drawNode(t, "a")
		a := c.SetNode(object)
		object = object.DeepCopy()
		object.Name, object.Labels[v1.LabelHostname] = "b", "b"
		b := c.SetNode(object)
		pod := c.Pending(drawAffinePod(t))
		if plugin.ReadsFor(pod)&Identity != 0 {
			return
		}
		alike++
		judge := plugin.Filter(c, pod)
		if judge.Only != nil || judge.All != nil {
			t.Fatal("the names of nodes matter")
		}
		if judge.Node != nil && (judge.Node(a) == nil) != (judge.Node(b) == nil) {
			t.Error("two nodes with the same labels are judged differently")
		}
		if scoring := plugin.Score(c, pod, nil); scoring.Node != nil {
			x, _ := scoring.Node(a)
			y, _ := scoring.Node(b)
			if x != y {
				t.Errorf("two nodes with the same labels score %d and %d", x, y)
			}
		}
	})
	if alike == 0 {
		t.Error("no pod was alike to nodes with equal labels")
	}
}

func drawNode(t *rapid.T, name string) *v1.Node {
	labels := map[string]string{v1.LabelHostname: name}
	for _, key := range []string{"zone", "size"} {
		if value := rapid.SampledFrom([]string{"", "a", "5", "none"}).Draw(t, key); value != "none" {
			labels[key] = value
		}
	}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func drawAffinePod(t *rapid.T) *v1.Pod {
	pod := &v1.Pod{Spec: v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{}}}}
	affinity := pod.Spec.Affinity.NodeAffinity
	if rapid.Bool().Draw(t, "requires") {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{
			NodeSelectorTerms: rapid.SliceOfN(rapid.Custom(drawNodeTerm), 0, 3).Draw(t, "terms"),
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "preferences") {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution,
			v1.PreferredSchedulingTerm{Weight: rapid.Int32Range(0, 9).Draw(t, "weight"), Preference: drawNodeTerm(t)})
	}
	if rapid.IntRange(0, 3).Draw(t, "selects") == 0 {
		pod.Spec.NodeSelector = map[string]string{rapid.SampledFrom([]string{"zone", v1.LabelHostname}).Draw(t, "selector"): "a"}
	}
	return pod
}

func drawNodeTerm(t *rapid.T) (term v1.NodeSelectorTerm) {
	operators := []v1.NodeSelectorOperator{
		v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist, v1.NodeSelectorOpGt, v1.NodeSelectorOpLt, "Is",
	}
	draw := func(keys ...string) v1.NodeSelectorRequirement {
		return v1.NodeSelectorRequirement{
			Key: rapid.SampledFrom(keys).Draw(t, "key"), Operator: rapid.SampledFrom(operators).Draw(t, "operator"),
			Values: rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "3", "5", ""}), 0, 2).Draw(t, "values"),
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "expressions") {
		e := draw("zone", "size", v1.LabelHostname)
		if rapid.IntRange(0, 2).Draw(t, "many") == 0 {
			for i := range 8 {
				e.Values = append(e.Values, fmt.Sprint("more-", i))
			}
		}
		term.MatchExpressions = append(term.MatchExpressions, e)
	}
	if rapid.IntRange(0, 3).Draw(t, "fields") == 0 {
		term.MatchFields = append(term.MatchFields, draw(metav1.ObjectNameField, metav1.ObjectNameField, "metadata.namespace"))
	}
	return term
}

// TestHundredsOfTermsByNameAreOne verifies that 400 terms with 100 host names each are merged into
// one term. Separately, they delayed all pods by seconds on 5,000 nodes.
func TestHundredsOfTermsByNameAreOne(t *testing.T) {
	s := &v1.NodeSelector{}
	for i := range 400 {
		e := v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn}
		for j := range 100 {
			e.Values = append(e.Values, fmt.Sprint("node-", i, "-", j))
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{e}})
	}
	terms := readNodeTerms(s)
	if len(terms) != 1 || len(terms[0].wanted[0].Values) != 40_000 {
		t.Fatalf("%d terms", len(terms))
	}
	c := cluster.New()
	for name, want := range map[string]bool{"node-399-99": true, "node-0-0": true, "node-400-0": false} {
		node := c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}})
		if got := terms.match(node); got != want {
			t.Errorf("%s: matches %t", name, got)
		}
	}
}

func TestOnlySomePodsAskForANodesIdentity(t *testing.T) {
	plugin, _ := NewNodeAffinity(nil)
	c := cluster.New()
	for _, test := range []struct {
		spec string
		want bool
	}{
		{"{}", false},
		{"{nodeSelector: {zone: a}}", false},
		{"{nodeSelector: {kubernetes.io/hostname: a}}", true},
		{required("matchExpressions: [{key: zone, operator: Exists}]"), false},
		{required("matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [a]}]"), true},
		{required("matchFields: [{key: metadata.name, operator: NotIn, values: [a]}]"), true},
		{required("matchFields: [{key: metadata.name, operator: In, values: [a, b]}]"), true}, // narrows although it cannot match
		{preferred("matchExpressions: [{key: zone, operator: Exists}]"), false},
		{preferred("matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]"), true},
	} {
		pod := waiting(t, c, "kind: Pod\nmetadata: {name: p}\nspec: "+test.spec)
		if got := plugin.ReadsFor(pod)&Identity != 0; got != test.want {
			t.Errorf("%s: asks for the identity: %t, want %t", test.spec, got, test.want)
		}
	}
}

func required(term string) string {
	return "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{" + term + "}]}}}}"
}

func preferred(term string) string {
	return "{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {" + term + "}}]}}}"
}
