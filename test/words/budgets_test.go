// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package words

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	scalefake "k8s.io/client-go/scale/fake"
	core "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/controller/disruption"

	rulesof "github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// TestBudgetsAreCountedAsUpstreamCountsThem verifies that Berth computes the same status of random
// budgets as upstream's disruption controller.
func TestBudgetsAreCountedAsUpstreamCountsThem(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(200) {
		objects, pods, budget := drawBudget(rand.New(rand.NewPCG(seed, 11)))
		want := countedByUpstream(t, append(objects, budget)...)

		var table workload.Table
		for _, o := range objects {
			table.Put(o.(metav1.Object))
		}
		var count rulesof.Count
		for _, p := range pods {
			healthy := 0
			if rulesof.IsReady(p) && p.DeletionTimestamp == nil {
				healthy = 1
			}
			count.Add(p.Namespace, metav1.GetControllerOf(p), 1, healthy)
		}
		got := count.Status(budget, &table)
		if failed(want.Conditions) != failed(got.Conditions) {
			t.Fatalf("seed %d: Berth %+v\nupstream %+v", seed, got, want)
		}
		if failed(want.Conditions) { // upstream does not update the numbers in this case
			want.ExpectedPods, want.CurrentHealthy, want.DesiredHealthy = got.ExpectedPods, got.CurrentHealthy, got.DesiredHealthy
		}
		numbers := func(s *policyv1.PodDisruptionBudgetStatus) string {
			return fmt.Sprint(s.ExpectedPods, s.CurrentHealthy, s.DesiredHealthy, s.DisruptionsAllowed)
		}
		if numbers(&got) != numbers(&want) {
			t.Fatalf("seed %d: Berth counts %s, upstream %s\n%+v", seed, numbers(&got), numbers(&want), budget.Spec)
		}
		seen[fmt.Sprint(failed(got.Conditions), got.DisruptionsAllowed > 0)]++
	}
	if len(seen) < 3 {
		t.Errorf("too much alike to show anything: %v", seen)
	}
}

func failed(list []metav1.Condition) bool {
	c := meta.FindStatusCondition(list, policyv1.DisruptionAllowedCondition)
	return c != nil && c.Reason == policyv1.SyncFailedReason
}

// countedByUpstream runs upstream's controller until it has written the budget's status, and
// returns the status.
func countedByUpstream(t *testing.T, objects ...runtime.Object) policyv1.PodDisruptionBudgetStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	scales := &scalefake.FakeScaleClient{}
	scales.AddReactor("get", "*", func(a core.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), "")
	})
	client.Resources = []*metav1.APIResourceList{
		{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "daemonsets"}}},
		{GroupVersion: "batch/v1", APIResources: []metav1.APIResource{{Name: "jobs"}}},
	}
	apps := factory.Apps().V1()
	c := disruption.NewDisruptionController(ctx, factory.Core().V1().Pods(), factory.Policy().V1().PodDisruptionBudgets(),
		factory.Core().V1().ReplicationControllers(), apps.ReplicaSets(), apps.Deployments(), apps.StatefulSets(), client,
		testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme), scales, client.Discovery())
	factory.Start(ctx.Done())
	go c.Run(ctx, 1)
	for {
		b, err := client.PolicyV1().PodDisruptionBudgets("default").Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Status.Conditions) > 0 {
			return b.Status
		}
		time.Sleep(time.Millisecond) // wait for the condition
	}
}

func drawBudget(r *rand.Rand) (objects []runtime.Object, pods []*v1.Pod, b *policyv1.PodDisruptionBudget) {
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "x"}}
	}
	few := func() *int32 { return new(int32(r.IntN(6))) }
	apps := appsv1.SchemeGroupVersion.WithKind
	d := &appsv1.Deployment{ObjectMeta: named("d"), Spec: appsv1.DeploymentSpec{Replicas: few()}}
	of, alone, other := &appsv1.ReplicaSet{ObjectMeta: named("d-1")}, &appsv1.ReplicaSet{ObjectMeta: named("rs")}, &appsv1.ReplicaSet{ObjectMeta: named("d-2")}
	for _, rs := range []*appsv1.ReplicaSet{of, alone, other} {
		if rs.Spec.Replicas = few(); rs != alone {
			rs.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(d, apps("Deployment"))}
		}
	}
	set := &appsv1.StatefulSet{ObjectMeta: named("s"), Spec: appsv1.StatefulSetSpec{Replicas: few()}}
	rc := &v1.ReplicationController{ObjectMeta: named("rc"), Spec: v1.ReplicationControllerSpec{Replicas: few(), Template: &v1.PodTemplateSpec{}}}
	objects = []runtime.Object{d, of, alone, other, set, rc}

	refs := []*metav1.OwnerReference{
		nil, metav1.NewControllerRef(of, apps("ReplicaSet")), metav1.NewControllerRef(other, apps("ReplicaSet")), metav1.NewControllerRef(alone, apps("ReplicaSet")),
		metav1.NewControllerRef(set, apps("StatefulSet")), metav1.NewControllerRef(rc, v1.SchemeGroupVersion.WithKind("ReplicationController")),
	}
	if r.IntN(4) == 0 {
		refs = append(refs, metav1.NewControllerRef(&metav1.ObjectMeta{Name: "ds", UID: "ds"}, apps("DaemonSet")),
			metav1.NewControllerRef(&metav1.ObjectMeta{Name: "j", UID: "j"}, batchv1.SchemeGroupVersion.WithKind("Job")))
	}
	for i := range r.IntN(9) {
		p := &v1.Pod{ObjectMeta: named(fmt.Sprintf("p%d", i))}
		if ref := refs[r.IntN(len(refs))]; ref != nil {
			p.OwnerReferences = []metav1.OwnerReference{*ref}
		}
		status := []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionTrue, v1.ConditionFalse, ""}[r.IntN(4)]
		if p.Status.StartTime = new(metav1.Now()); status != "" {
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: status}}
		}
		if r.IntN(6) == 0 {
			p.DeletionTimestamp, p.Finalizers = new(metav1.Now()), []string{"example.com/wait"}
		}
		pods, objects = append(pods, p), append(objects, p)
	}

	b = &policyv1.PodDisruptionBudget{ObjectMeta: named("b")}
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	limit := intstr.FromInt32(*few())
	if r.IntN(2) == 0 {
		limit = intstr.FromString(fmt.Sprintf("%d%%", r.IntN(101)))
	}
	if b.Spec.MinAvailable = &limit; r.IntN(2) == 0 {
		b.Spec.MinAvailable, b.Spec.MaxUnavailable = nil, &limit
	}
	return objects, pods, b
}
