// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LongPods returns pods of 10,000 containers, about the maximum for an object: a pod with only
// requests and limits; pods with a unique image, resource or host port in each container; a pod
// with 1,500 unique resources in each of ten containers; and a pod with sidecars. Unique texts
// begin with the prefix. A generator, which grows one field at a time, does not create such pods.
func LongPods(prefix string) (pods []*v1.Pod) {
	const containers, many, each = 10_000, 10, 1500
	one, always := resource.MustParse("1"), v1.ContainerRestartPolicyAlways
	own := func(n int) v1.ResourceName { return v1.ResourceName(fmt.Sprint("e.io/", prefix, n)) }

	for i, fill := range []func(c *v1.Container, n int){
		func(c *v1.Container, _ int) { c.Resources.Limits = c.Resources.Requests },
		func(c *v1.Container, n int) { c.Image = fmt.Sprint(prefix, n) },
		func(c *v1.Container, n int) {
			c.Resources.Requests = v1.ResourceList{own(n): one}
			c.Resources.Limits = c.Resources.Requests
		},
		func(c *v1.Container, n int) {
			c.Resources.Requests = v1.ResourceList{}
			for k := range each {
				if n < many {
					c.Resources.Requests[own(n*each+k)] = one
				}
			}
			c.Resources.Limits = c.Resources.Requests
		},
		func(c *v1.Container, n int) {
			c.Ports = []v1.ContainerPort{{ContainerPort: int32(1 + n), HostPort: int32(1 + n)}}
		},
		func(c *v1.Container, n int) {
			if n > 0 {
				c.RestartPolicy = &always
			}
		},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: fmt.Sprint("long-", i)}}
		list := make([]v1.Container, containers)
		for n := range list {
			// Set requests of two resources, which every filter for room adds up.
			requests := v1.ResourceList{v1.ResourceCPU: resource.Quantity{}, v1.ResourceMemory: one}
			list[n] = v1.Container{Name: fmt.Sprint("c", n), Image: "i", Resources: v1.ResourceRequirements{Requests: requests}}
			fill(&list[n], n)
		}
		// Sidecars are init containers that are always restarted.
		if pod.Spec.Containers = list; list[1].RestartPolicy != nil {
			pod.Spec.Containers, pod.Spec.InitContainers = list[:1], list[1:]
		}
		pods = append(pods, pod)
	}
	return pods
}
