// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// bulkCore returns a core with five nodes, to be shown large objects.
func bulkCore(t *testing.T) *churn {
	t.Helper()
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := &churn{now: churnBegins, core: core, pods: map[types.UID]*v1.Pod{}}
	c.tell(Follows{})
	c.tell(Led{})
	for i := range 5 {
		c.see(Nodes, churnNode(fmt.Sprint("n", i), "8"))
	}
	return c
}

// bulkText returns 100 KB of text, different for each number.
func bulkText(i int) string { return fmt.Sprint(i) + strings.Repeat("x", 100<<10) }

// grownBy returns the growth of the core's memory across f.
func (c *churn) grownBy(f func()) int64 {
	before := heap()
	f()
	grown := heap() - before
	runtime.KeepAlive(c)
	return grown
}

// TestEventsOfLargeObjectsAreForgotten verifies that events do not retain large objects. Events are
// kept while a pod is being bound, and each event holds the object before and after the change.
func TestEventsOfLargeObjectsAreForgotten(t *testing.T) {
	c := bulkCore(t)
	waits := churnPod("waits", "1")
	waits.Spec.NodeSelector = map[string]string{"nobody": "x"}
	c.see(Pods, waits)
	c.settle()
	c.see(Pods, churnPod("taken", "1"))
	c.core.Step(c.now, Tick{}) // the outcome of its Bind never arrives
	if books := c.core.Books(); len(books.Assumed) != 1 {
		t.Fatalf("%v", books)
	}
	grown := c.grownBy(func() {
		for i := range 600 {
			claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: types.UID(fmt.Sprint(i)), Annotations: map[string]string{"a": bulkText(i)}}}
			c.tell(Seen{Claims, claim})
			c.core.Step(c.now, Tick{})
			c.tell(Gone{Claims, claim})
			c.core.Step(c.now, Tick{})
		}
	})
	if grown > 16<<20 {
		t.Errorf("claims of %d MiB that are gone are kept", grown>>20)
	}
}

// TestPodsOfEventsAreNotKept verifies that API objects of bound and deleted pods are retained only
// for out-of-tree plugins.
func TestPodsOfEventsAreNotKept(t *testing.T) {
	c := bulkCore(t)
	waits := churnPod("waits", "1")
	waits.Spec.NodeSelector = map[string]string{"nobody": "x"}
	c.see(Pods, waits)
	c.settle()
	c.see(Pods, churnPod("taken", "1"))
	c.core.Step(c.now, Tick{})
	grown := c.grownBy(func() {
		for i := range 400 {
			pod := churnPod(fmt.Sprint("p", i), "1")
			pod.Spec.NodeName, pod.Annotations = "n1", map[string]string{"a": bulkText(i)}
			c.tell(Seen{Pods, pod})
			c.core.Step(c.now, Tick{})
			c.tell(Gone{Pods, pod})
			c.core.Step(c.now, Tick{})
		}
	})
	if grown > 16<<20 {
		t.Errorf("pods of %d MiB that are gone are kept", grown>>20)
	}
}

// TestShapesOfLargeClaimsAreForgotten verifies that cached device availability, which is indexed by
// the requests of claims, does not retain large claims.
func TestShapesOfLargeClaimsAreForgotten(t *testing.T) {
	c := bulkCore(t)
	c.see(DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	grown := c.grownBy(func() {
		for i := range 400 {
			name := fmt.Sprint("c", i)
			claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
			claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}
			claim.Spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: resourcev1.DeviceConfiguration{
				Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: "d", Parameters: apiruntime.RawExtension{Raw: []byte(`"` + bulkText(i) + `"`)}}}}}
			c.tell(Seen{ResourceClaims, claim})
			pod := churnPod(fmt.Sprint("p", i), "1")
			pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &name}}
			c.tell(Seen{Pods, pod})
			c.core.Step(c.now, Tick{})
			c.tell(Gone{Pods, pod})
			c.tell(Gone{ResourceClaims, claim})
			c.core.Step(c.now, Tick{})
		}
	})
	if grown > 20<<20 {
		t.Errorf("claims of %d MiB that are gone are kept", grown>>20)
	}
}

// TestBudgetsThatAreGoneAreForgotten verifies that deleted budgets are forgotten even if a pending
// victim has reduced them.
func TestBudgetsThatAreGoneAreForgotten(t *testing.T) {
	c := bulkCore(t)
	pr := c.core.preemptions
	pr.keepsBudgets = true
	victim := churnPod("victim", "1")
	victim.Labels, victim.Spec.NodeName = map[string]string{"app": "a"}, "n1"
	c.see(Pods, victim)
	pr.leaving[victim.UID] = true
	for i := range 3 {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("b", i), UID: types.UID(fmt.Sprint("b", i))}}
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: victim.Labels}
		c.tell(Seen{DisruptionBudgets, budget})
		if len(pr.budgets) != 1 {
			t.Fatalf("%d budgets are reduced", len(pr.budgets))
		}
		c.tell(Gone{DisruptionBudgets, budget})
		if len(pr.budgets) != 0 {
			t.Fatalf("%d budgets that are gone are kept", len(pr.budgets))
		}
	}
}

// TestTermsThatSelectNamespacesAreSmall verifies that a pod with 500 terms, each of which selects
// thousands of namespaces, takes little memory.
func TestTermsThatSelectNamespacesAreSmall(t *testing.T) {
	c := bulkCore(t)
	for i := range 2000 {
		c.see(Namespaces, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("ns", i), UID: types.UID(fmt.Sprint("ns", i)), Labels: map[string]string{"team": fmt.Sprint(i)}}})
	}
	pod := churnPod("p", "1")
	terms := make([]v1.PodAffinityTerm, 500)
	for i := range terms {
		terms[i] = v1.PodAffinityTerm{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i)}},
			NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: metav1.LabelSelectorOpExists}}}}
	}
	pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	grown := c.grownBy(func() {
		c.see(Pods, pod)
		c.core.Step(c.now, Tick{})
	})
	if grown > 8<<20 {
		t.Errorf("a pod of %d KiB takes %d MiB", pod.Size()>>10, grown>>20)
	}
}
