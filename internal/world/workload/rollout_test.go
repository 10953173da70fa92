// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"math/rand/v2"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"k8s.io/utils/ptr"
)

// TestRolloutsAreDoneWhenKubectlSaysSo verifies that the results for random workloads and statuses
// agree with kubectl rollout status. kubectl does not report on sets with OnDelete, which count as
// complete.
func TestRolloutsAreDoneWhenKubectlSaysSo(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(6000) {
		r := rand.New(rand.NewPCG(seed, 7))
		object, viewer := drawWorkload(r)
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			t.Fatal(err)
		}

		_, done, refusal := viewer.Status(&unstructured.Unstructured{Object: fields}, 0)
		if got := Rolling(object); (got == "") != (done || refusal != nil) {
			t.Fatalf("seed %d: Rolling says %q, kubectl done %t, %v\n%+v", seed, got, done, refusal, object)
		}
		seen[fmt.Sprintf("%T %s %t", object, Rolling(object), refusal != nil)]++
	}
	if len(seen) < 15 {
		t.Errorf("only %d kinds of answers: %v", len(seen), seen)
	}
}

func drawWorkload(r *rand.Rand) (metav1.Object, polymorphichelpers.StatusViewer) {
	few := func() int32 { return int32(r.IntN(4)) }
	meta := metav1.ObjectMeta{Name: "web", Generation: int64(1 + r.IntN(2))}
	observed := int64(1 + r.IntN(2))
	switch r.IntN(3) {
	case 0:
		d := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(few())}}
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: few(), UpdatedReplicas: few(), AvailableReplicas: few()}
		return d, &polymorphichelpers.DeploymentStatusViewer{}
	case 1:
		d := &appsv1.DaemonSet{ObjectMeta: meta}
		d.Spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
		if r.IntN(4) == 0 {
			d.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
		}
		d.Status = appsv1.DaemonSetStatus{ObservedGeneration: observed, DesiredNumberScheduled: few(), UpdatedNumberScheduled: few(), NumberAvailable: few()}
		return d, &polymorphichelpers.DaemonSetStatusViewer{}
	}
	s := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To(few())}}
	s.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
	switch r.IntN(4) {
	case 0:
		s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	case 1:
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To(few())}
	case 2:
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{}
	}
	s.Status = appsv1.StatefulSetStatus{
		ObservedGeneration: observed, ReadyReplicas: few(), UpdatedReplicas: few(), CurrentRevision: "a", UpdateRevision: []string{"a", "b"}[r.IntN(2)],
	}
	return s, &polymorphichelpers.StatefulSetStatusViewer{}
}

// TestOutdatedPods verifies that the successor of a pod is created from the new template of its
// set, if there is one, unless the pod is below the partition, which counts from the first ordinal.
func TestOutdatedPods(t *testing.T) {
	set := func(start, partition int32, strategy appsv1.StatefulSetUpdateStrategyType) *appsv1.StatefulSet {
		s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{Ordinals: &appsv1.StatefulSetOrdinals{Start: start}}}
		s.Spec.UpdateStrategy.Type, s.Status.UpdateRevision = strategy, "db-b"
		if strategy == appsv1.RollingUpdateStatefulSetStrategyType {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition}
		}
		return s
	}
	daemon := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Annotations: map[string]string{templateGeneration: "2"}}}
	revision := func(hash string) map[string]string {
		return map[string]string{appsv1.ControllerRevisionHashLabelKey: hash}
	}
	for i, c := range []struct {
		object metav1.Object
		pod    string
		labels map[string]string
		want   bool
	}{
		{set(0, 0, appsv1.OnDeleteStatefulSetStrategyType), "db-0", revision("db-a"), true},
		{set(0, 0, appsv1.OnDeleteStatefulSetStrategyType), "db-0", revision("db-b"), false},
		{set(0, 0, appsv1.OnDeleteStatefulSetStrategyType), "db-0", nil, false},
		{set(0, 1, appsv1.RollingUpdateStatefulSetStrategyType), "db-0", revision("db-a"), false},
		{set(0, 1, appsv1.RollingUpdateStatefulSetStrategyType), "db-1", revision("db-a"), true},
		{set(5, 1, appsv1.RollingUpdateStatefulSetStrategyType), "db-5", revision("db-a"), false},
		{set(5, 1, appsv1.RollingUpdateStatefulSetStrategyType), "db-6", revision("db-a"), true},
		{daemon, "db-x", map[string]string{madeOfGeneration: "1"}, true},
		{daemon, "db-x", map[string]string{madeOfGeneration: "2"}, false},
		{daemon, "db-x", nil, false},
		{&appsv1.ReplicaSet{}, "db-x", revision("db-a"), false},
	} {
		if got := Outdated(c.object, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: c.pod, Labels: c.labels}}); got != c.want {
			t.Errorf("case %d: %s %v: %t, want %t", i+1, c.pod, c.labels, got, c.want)
		}
	}
}
