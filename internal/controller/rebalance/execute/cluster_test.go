// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

func podOf(namespace, name string, owner types.UID) *v1.Pod {
	controls := true
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: owner, Controller: &controls}},
	}}
}

// TestPodsOfAnotherNamespaceAreNoSuccessors verifies that successors are searched only in the pod's
// namespace. Any user with permission to create pods in another namespace can set an arbitrary
// owner reference.
func TestPodsOfAnotherNamespaceAreNoSuccessors(t *testing.T) {
	two := int32(2)
	web := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}, Spec: appsv1.ReplicaSetSpec{Replicas: &two}}
	leaves := departureOf(&Flight{Move: rebalance.Move{Namespace: "shop", Owner: "ReplicaSet/web", To: "b"}, OwnerUID: "web"})
	c := newCluster()
	forged := podOf("tenant", "forged", "web")
	forged.Spec.NodeName = "b"
	forged.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	for _, object := range []metav1.Object{web, podOf("shop", "web-1", "web"), forged} {
		c.Put(object)
	}
	anyone := func(*v1.Pod) bool { return true }
	if next := c.successor(rules.Predecessor{Namespace: "shop", Owner: "web"}, "b", anyone); next == nil || next.Name != "web-1" {
		t.Errorf("the successor is %v, want web-1", next)
	}
	if c.satisfied(leaves) {
		t.Error("one of two pods, and none is wanted")
	}
	c.Put(podOf("shop", "web-2", "web"))
	if !c.satisfied(leaves) {
		t.Error("two of two pods, and one more is wanted")
	}
	for _, p := range []*v1.Pod{podOf("shop", "web-1", "web"), podOf("shop", "web-2", "web"), forged} {
		c.Delete(p)
	}
	if left := c.PodsOf(leaves.owner); len(left) > 0 {
		t.Errorf("remembered after all have gone: %v", left)
	}
}

// TestNoPodSucceedsTwo verifies that no pod is the successor of two victims, even if the first
// victim is no longer tracked.
func TestNoPodSucceedsTwo(t *testing.T) {
	m := &mover{}
	m.init(nil, newCluster(), nil)
	first, second := departureOf(&Flight{OwnerUID: "web"}), departureOf(&Flight{OwnerUID: "web"})
	first.Namespace, first.known, first.owner.Namespace = "shop", map[types.UID]bool{}, "shop"
	second.Namespace, second.known, second.owner.Namespace = "shop", map[types.UID]bool{}, "shop"
	m.cluster.Put(podOf("shop", "web-1", "web"))
	if next := m.successorOf(first); next == nil {
		t.Fatal("the first pod has no successor")
	}
	if next := m.successorOf(second); next != nil {
		t.Errorf("%s succeeds both", next.Name)
	}
	m.cluster.Put(podOf("shop", "web-2", "web"))
	if next := m.successorOf(second); next == nil || next.Name != "web-2" {
		t.Errorf("the second pod is succeeded by %q, want web-2", next.GetName())
	}
}

// TestABudgetIsOfTheScaleDuringASurge verifies that maxUnavailable applies to the controllers'
// scale, as in the disruption controller, rather than to the number of existing pods.
func TestABudgetIsOfTheScaleDuringASurge(t *testing.T) {
	most, labels := intstr.FromInt32(1), map[string]string{"app": "web"}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	budget.Spec = policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &most, Selector: &metav1.LabelSelector{MatchLabels: labels}}
	for _, row := range []struct {
		scale int32 // includes the replica added by the surge
		want  string
	}{{3, ""}, {4, ""}, {5, "the disruption budget web needs 3 healthy pods, and would have 2"}} {
		c := newCluster()
		c.Put(budget)
		c.Put(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}, Spec: appsv1.ReplicaSetSpec{Replicas: &row.scale}})
		var victim *v1.Pod
		for _, name := range []string{"a", "b", "c"} {
			victim = podOf("shop", name, "web")
			victim.Labels, victim.Status.Conditions = labels, []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
			c.Put(victim)
		}
		if got := c.forbids([]*v1.Pod{victim}); got != row.want {
			t.Errorf("of a scale of %d: %q, want %q", row.scale, got, row.want)
		}
	}
}
