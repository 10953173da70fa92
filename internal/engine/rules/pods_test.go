// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestBestEffortIsTheClassOfService(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	list := func() v1.ResourceList {
		l := v1.ResourceList{}
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "example.com/gpu"} {
			if r.IntN(5) == 0 {
				l[name] = *resource.NewQuantity(r.Int64N(2), resource.DecimalSI)
			}
		}
		return l
	}
	containers := func(most int) (all []v1.Container) {
		for range r.IntN(most + 1) {
			all = append(all, v1.Container{Resources: v1.ResourceRequirements{Requests: list(), Limits: list()}})
		}
		return all
	}

	best := 0
	for range 20_000 {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: containers(2), InitContainers: containers(1)}}
		if r.IntN(4) == 0 {
			pod.Spec.Resources = &v1.ResourceRequirements{Requests: list(), Limits: list()}
		}
		want := ComputeQOS(pod) == v1.PodQOSBestEffort
		if got := IsBestEffort(pod); got != want {
			t.Fatalf("%v, want %v: %+v", got, want, pod.Spec)
		}
		if want {
			best++
		}
	}
	if best < 2000 || best > 18_000 {
		t.Errorf("%d of 20000 pods are BestEffort: too few of one kind", best)
	}
}

func TestConditionsAreFoundByType(t *testing.T) {
	pod := &v1.Pod{Status: v1.PodStatus{Conditions: []v1.PodCondition{
		{Type: v1.PodScheduled, Status: v1.ConditionTrue}, {Type: v1.PodReady, Status: v1.ConditionFalse},
	}}}
	c := PodCondition(&pod.Status, v1.PodReady)
	if c != &pod.Status.Conditions[1] {
		t.Fatalf("got %v, want a pointer to the second condition", c)
	}
	if c := PodCondition(&pod.Status, v1.DisruptionTarget); c != nil {
		t.Errorf("got %v, want nil for a missing type", c)
	}
	if HasReadyCondition(pod) || HasReadyCondition(&v1.Pod{}) {
		t.Error("a pod is ready whose condition is false or missing")
	}
	c.Status = v1.ConditionTrue
	if !HasReadyCondition(pod) {
		t.Error("a pod is not ready whose condition is true")
	}
}

func TestDefaultsKeepExplicitZeros(t *testing.T) {
	zero, unset := new(0), (*int)(nil)
	SetDefault(&zero, 1)
	SetDefault(&unset, 1)
	if *zero != 0 || unset == nil || *unset != 1 {
		t.Errorf("got %v and %v, want pointers to 0 and 1", zero, unset)
	}
}

func TestFalseIsFirst(t *testing.T) {
	for _, row := range []struct {
		a, b bool
		want int
	}{{false, false, 0}, {false, true, -1}, {true, false, 1}, {true, true, 0}} {
		if got := FalseFirst(row.a, row.b); got != row.want {
			t.Errorf("%v and %v: got %d, want %d", row.a, row.b, got, row.want)
		}
	}
}
