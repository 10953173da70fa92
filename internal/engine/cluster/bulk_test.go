// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// largePod returns a pod with 100 KB of labels.
func largePod(i int) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("large-", i), UID: types.UID(fmt.Sprint("large-", i)), Labels: map[string]string{}}}
	for k := range 1000 {
		pod.Labels[fmt.Sprint("key-", k)] = strings.Repeat("x", 90) + fmt.Sprint(i)
	}
	return pod
}

// TestLargeClassesThatAreGoneAreDropped verifies that large classes without pods are dropped,
// although the limit on classes without pods grows with the number of pods.
func TestLargeClassesThatAreGoneAreDropped(t *testing.T) {
	c := New()
	c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	for i := range 2000 {
		c.SetPod(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"i": fmt.Sprint(i)}},
			Spec: v1.PodSpec{NodeName: "n"}})
	}
	kept := 0
	for i := range 200 {
		c.Pending(largePod(i))
		now := 0
		for class := range c.classes.byKey.All {
			now += class.Bulk
		}
		kept = max(kept, now)
	}
	if kept > MostBulk+(1<<20) || kept == 0 {
		t.Errorf("classes of %d KiB are kept", kept>>10)
	}
	if c.classes.byKey.Len() < 2000 {
		t.Errorf("%d classes are left, want those of 2000 pods", c.classes.byKey.Len())
	}
}

// TestBudgetsOfLargeClassesAreForgotten verifies that the cache of covering budgets does not keep
// many large classes.
func TestBudgetsOfLargeClassesAreForgotten(t *testing.T) {
	c := New()
	one := intstr.FromInt32(1)
	c.Budgets.Set(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "key-0", Operator: metav1.LabelSelectorOpExists}}}}})
	for i := range 150 {
		if list := c.BudgetsOf(c.Pending(largePod(i)).Class); len(list) != 1 {
			t.Fatalf("pod %d is covered by %d budgets", i, len(list))
		}
	}
	kept := 0
	for class := range c.budgets.spaces["ns"].covering {
		kept += class.Bulk
	}
	if kept > MostBulk+(1<<20) || kept == 0 {
		t.Errorf("classes of %d KiB are kept", kept>>10)
	}
}

// TestBudgetsOfGoneClassesAreForgotten verifies that the number of classes with cached budgets is
// bounded by twice the number of classes with pods.
func TestBudgetsOfGoneClassesAreForgotten(t *testing.T) {
	c := New()
	c.Budgets.Set(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}}})
	const there = 100
	for i := range 2000 {
		p := c.SetPod(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"app": "a", "pod": fmt.Sprint(i)}},
			Spec: v1.PodSpec{NodeName: "n"}})
		if list := c.BudgetsOf(p.Class); len(list) != 1 {
			t.Fatalf("pod %d is covered by %d budgets", i, len(list))
		}
		c.RemovePod(types.UID(fmt.Sprint(i - there)))
	}
	if kept := len(c.budgets.spaces["ns"].covering); kept > 2*there || kept < there {
		t.Errorf("%d classes are remembered, of which %d have pods", kept, there)
	}
}

// TestAClassKeepsTheStatusAlone verifies that the class of a pod with claims retains a copy of the
// pod's status, and not the pod itself.
func TestAClassKeepsTheStatusAlone(t *testing.T) {
	pod := largePod(0)
	pod.Spec.ResourceClaims, pod.Status.Phase = []v1.PodResourceClaim{{Name: "c"}}, v1.PodPending
	class := New().Pending(pod).Class
	if class.Spec.Status == nil || class.Spec.Status.Phase != v1.PodPending {
		t.Fatalf("the status is %v", class.Spec.Status)
	}
	if class.Spec.Status == &pod.Status {
		t.Error("the class refers to the pod")
	}
}
