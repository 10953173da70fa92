// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestResourcesAreAddedUpByThemselves verifies that every rule returns the same amounts of some
// resources with and without the pod's other resources.
func TestResourcesAreAddedUpByThemselves(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	names := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "e.io/a", "hugepages-2Mi"}
	always := v1.ContainerRestartPolicyAlways
	for i := range 3000 {
		containers := func(n int) (all []v1.Container) {
			for k := range n {
				c := v1.Container{Name: fmt.Sprint("c", k), Resources: v1.ResourceRequirements{Requests: v1.ResourceList{}}}
				for _, name := range names {
					if random.IntN(2) == 0 {
						c.Resources.Requests[name] = *resource.NewQuantity(random.Int64N(5), resource.DecimalSI)
					}
				}
				all = append(all, c)
			}
			return all
		}
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: containers(1 + random.IntN(3)), InitContainers: containers(random.IntN(20))}}
		for k := range pod.Spec.InitContainers {
			if random.IntN(2) == 0 {
				pod.Spec.InitContainers[k].RestartPolicy = &always
			}
		}
		if random.IntN(3) == 0 {
			pod.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), "e.io/a": resource.MustParse("1")}
		}
		if random.IntN(3) == 0 {
			pod.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("7")}}
		}
		if random.IntN(2) == 0 { // the pod is being resized
			for _, c := range containers(len(pod.Spec.Containers)) {
				status := v1.ContainerStatus{Name: c.Name, AllocatedResources: c.Resources.Requests}
				if random.IntN(2) == 0 {
					status.Resources = &containers(1)[0].Resources
				}
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
			}
		}
		if random.IntN(4) == 0 {
			pod.Status.Resources = &v1.ResourceRequirements{Requests: containers(1)[0].Resources.Requests}
			pod.Status.AllocatedResources = containers(1)[0].Resources.Requests
		}
		some := names[:1+random.IntN(len(names))]
		for k, rule := range []func(*v1.Pod) v1.ResourceList{Requests, RequestsPlaced, ScoreRequests, ScoreRequestsPlaced} {
			want, got := rule(pod), rule(narrowPod(pod, some))
			for _, name := range some {
				if w, g := want[name], got[name]; w.Cmp(g) != 0 {
					t.Fatalf("pod %d, rule %d: %s of %s, want %s", i, k, &g, name, &w)
				}
			}
		}
	}
}
