// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
)

// TestManyInitContainersAreAddedUpAsByTheLibrary verifies that random pods with many init
// containers have the requests and limits computed by the library.
func TestManyInitContainersAreAddedUpAsByTheLibrary(t *testing.T) {
	list := func(r *rand.Rand) v1.ResourceList {
		all := v1.ResourceList{}
		for _, name := range []v1.ResourceName{"cpu", "memory", "example.com/a", "hugepages-2Mi"} {
			if r.IntN(2) == 0 {
				all[name] = resource.MustParse([]string{"0", "1", "100m", "7", "1e30", "3n", "9223372036854775807"}[r.IntN(7)])
			}
		}
		return all
	}
	sidecars := false
	container := func(r *rand.Rand, i int) (c v1.Container, s v1.ContainerStatus) {
		c = v1.Container{Name: fmt.Sprint("c", i), Resources: v1.ResourceRequirements{Requests: list(r), Limits: list(r)}}
		if sidecars && r.IntN(2) == 0 {
			c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		}
		s = v1.ContainerStatus{Name: c.Name, AllocatedResources: list(r)}
		if r.IntN(2) == 0 {
			s.Resources = &v1.ResourceRequirements{Requests: list(r), Limits: list(r)}
		}
		return c, s
	}
	for seed := range 600 {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		pod := &v1.Pod{}
		sidecars = r.IntN(3) > 0
		for i := range r.IntN(3) {
			c, s := container(r, i)
			pod.Spec.Containers, pod.Status.ContainerStatuses = append(pod.Spec.Containers, c), append(pod.Status.ContainerStatuses, s)
		}
		for i := range fewInitContainers + 1 + r.IntN(8) {
			c, s := container(r, 10+i)
			pod.Spec.InitContainers, pod.Status.InitContainerStatuses = append(pod.Spec.InitContainers, c), append(pod.Status.InitContainerStatuses, s)
		}
		if r.IntN(2) == 0 {
			pod.Spec.Resources = &v1.ResourceRequirements{Requests: list(r), Limits: list(r)}
			pod.Status.Resources, pod.Status.AllocatedResources = &v1.ResourceRequirements{Requests: list(r)}, list(r)
		}
		if r.IntN(2) == 0 {
			pod.Spec.Overhead = list(r)
		}
		if r.IntN(3) == 0 { // no resources are allocated yet
			pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses = nil, nil
		}
		if r.IntN(4) == 0 {
			pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonInfeasible}}
		}
		defaults := v1.ResourceList{v1.ResourceCPU: defaultCPU, v1.ResourceMemory: defaultMemory}
		// Use copies, because the library adds overhead to the pod's own amounts if they are large.
		for _, options := range []helper.PodResourcesOptions{
			{}, placed, {SkipPodLevelResources: true, NonMissingContainerRequests: defaults}, {ExcludeOverhead: true}, {UseStatusResources: true, NonMissingContainerRequests: defaults},
		} {
			if got, want := texts(PodRequests(pod.DeepCopy(), options)), texts(helper.PodRequests(pod.DeepCopy(), options)); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d requests %v, the library has %v", seed, got, want)
			}
			if got, want := texts(PodLimits(pod.DeepCopy(), options)), texts(helper.PodLimits(pod.DeepCopy(), options)); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d is limited to %v, the library has %v", seed, got, want)
			}
		}
	}
}

func texts(list v1.ResourceList) map[v1.ResourceName]string {
	all := map[v1.ResourceName]string{}
	for name, amount := range list {
		all[name] = amount.String()
	}
	return all
}

// TestSidecarsWithResourcesOfTheirOwn verifies that the largest possible number of sidecars is
// added up quickly. The library would take half a minute.
func TestSidecarsWithResourcesOfTheirOwn(t *testing.T) {
	pod := &v1.Pod{}
	for i := range 10_000 {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, v1.Container{
			Name: fmt.Sprint("c", i), RestartPolicy: new(v1.ContainerRestartPolicyAlways),
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceName(fmt.Sprint("example.com/", i)): resource.MustParse("1")}},
		})
	}
	began := time.Now()
	if n := len(Requests(pod)) + len(ScoreRequestsPlaced(pod)); n != 20_002 {
		t.Errorf("%d resources, want 20,002", n)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}
