// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/deployment/util"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/world/workload"
)

// TestScaledDeploymentsAreSharedAsTheirControllerDoes verifies that the forecast distributes the
// replicas of a scaled Deployment over its ReplicaSets as the Deployment controller does. Many of
// the Deployments are in the middle of a rollout.
func TestScaledDeploymentsAreSharedAsTheirControllerDoes(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 11))
		d, sets := scaledDeployment(r)
		got, before := map[string]int32{}, fmt.Sprint(d.Spec.Strategy.Type)
		for _, set := range sets {
			got[set.Name] = *set.Spec.Replicas
			before += fmt.Sprintf(" %d%v", *set.Spec.Replicas, set.Annotations)
		}
		for _, set := range workload.ScaleSets(d.DeepCopy(), sets) {
			got[set.Name] = *set.Spec.Replicas
		}
		if want := scaledByController(t, d, sets); !maps.Equal(got, want) {
			t.Fatalf("seed %d: %s to %d, surge %v, status %d: %v, by the controller %v", seed, before, *d.Spec.Replicas,
				d.Spec.Strategy.RollingUpdate, d.Status.Replicas, got, want)
		}
		seen[fmt.Sprint(d.Spec.Strategy.Type, len(workload.Active(sets)))]++
	}
	if len(seen) < 6 {
		t.Errorf("only %d kinds of Deployments: %v", len(seen), seen)
	}
}

// scaledDeployment draws a Deployment of up to three ReplicaSets, including the ReplicaSet of the
// current template. Its scale differs from the scale last observed by its controller.
func scaledDeployment(r *rand.Rand) (*appsv1.Deployment, []*appsv1.ReplicaSet) {
	template := func(image string) v1.PodTemplateSpec {
		return v1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: image}}},
		}
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web", Generation: 2}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	d.Spec.Template, d.Spec.Replicas = template("new"), ptr.To(int32(r.IntN(30)))
	d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	if r.IntN(5) > 0 {
		surge := []intstr.IntOrString{intstr.FromString("25%"), intstr.FromInt32(0), intstr.FromInt32(3), intstr.FromString("100%")}[r.IntN(4)]
		d.Spec.Strategy = appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: ptr.To(intstr.FromInt32(1))},
		}
	}

	var sets []*appsv1.ReplicaSet
	scale, count := int(*d.Spec.Replicas)+1+r.IntN(20), 1+r.IntN(3)
	for i := range count {
		image := "new"
		if i < count-1 {
			image = fmt.Sprint("old-", i)
		}
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("web-", i)), Labels: map[string]string{"app": "web"},
			CreationTimestamp: metav1.NewTime(time.Unix(int64(r.IntN(3)), 0)),
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		}}
		set.Spec.Selector, set.Spec.Template = d.Spec.Selector, template(image)
		set.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = fmt.Sprint(i)
		set.Spec.Replicas = ptr.To(int32([]int{0, 1 + r.IntN(10), 5, 1 + r.IntN(10)}[r.IntN(4)]))
		set.Status.Replicas, set.Status.AvailableReplicas = *set.Spec.Replicas, int32(r.IntN(int(*set.Spec.Replicas)+1))
		util.SetReplicasAnnotations(set, int32(scale), int32([]int{0, scale, scale + r.IntN(4)}[r.IntN(3)]))
		if r.IntN(6) == 0 {
			delete(set.Annotations, util.MaxReplicasAnnotation)
		}
		d.Status.Replicas += *set.Spec.Replicas
		sets = append(sets, set)
	}
	// The controller detects a new scale by its ReplicaSets with replicas, so at least one must
	// have replicas.
	saturated := count > 1 && r.IntN(4) == 0
	if len(workload.Active(sets)) == 0 || saturated && *sets[0].Spec.Replicas == 0 {
		sets[0].Spec.Replicas = ptr.To[int32](1)
	}
	if saturated {
		last := sets[count-1]
		last.Spec.Replicas, last.Status.AvailableReplicas = d.Spec.Replicas, *d.Spec.Replicas
		util.SetReplicasAnnotations(last, *d.Spec.Replicas, *d.Spec.Replicas)
	}
	return d, sets
}

// scaledByController runs the Deployment controller until its status update, which ends the scaling
// step, and returns the replicas of each ReplicaSet.
func scaledByController(t *testing.T, d *appsv1.Deployment, sets []*appsv1.ReplicaSet) map[string]int32 {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	objects := []runtime.Object{d.DeepCopy()}
	for _, set := range sets {
		objects = append(objects, set.DeepCopy())
	}
	client, done := fake.NewClientset(objects...), make(chan map[string]int32, 1)
	client.PrependReactor("update", "deployments", func(action ktesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "status" {
			return false, nil, nil
		}
		sizes := map[string]int32{}
		list, err := client.Tracker().List(appsv1.SchemeGroupVersion.WithResource("replicasets"), appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), "default")
		if err != nil {
			t.Error(err)
			return true, nil, err
		}
		for _, set := range list.(*appsv1.ReplicaSetList).Items {
			sizes[set.Name] = *set.Spec.Replicas
		}
		select {
		case done <- sizes:
		default:
		}
		<-ctx.Done()
		return true, nil, ctx.Err()
	})

	shared := informers.NewSharedInformerFactory(client, 0)
	c, err := deployment.NewDeploymentController(ctx, shared.Apps().V1().Deployments(), shared.Apps().V1().ReplicaSets(), shared.Core().V1().Pods(), client)
	if err != nil {
		t.Fatal(err)
	}
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())
	go c.Run(ctx, 1)
	select {
	case sizes := <-done:
		return sizes
	case <-time.After(30 * time.Second):
		t.Fatal("the controller wrote no status")
	}
	return nil
}
