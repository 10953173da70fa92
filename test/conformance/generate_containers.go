// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func (g *podGenerator) drawContainers(pod *v1.Pod) {
	for i := range 1 + g.drawFew(2) {
		pod.Spec.Containers = append(pod.Spec.Containers, g.drawContainer(fmt.Sprintf("main-%d", i)))
	}
	for i := range g.drawFew(3) {
		c := g.drawContainer(fmt.Sprintf("init-%d", i))
		if g.withChance(0.5) {
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}

	if g.withChance(0.1) {
		pod.Spec.Overhead = v1.ResourceList{}
		g.putAmount(pod.Spec.Overhead, v1.ResourceCPU, "", "0", "250m", "1")
		g.putAmount(pod.Spec.Overhead, v1.ResourceMemory, "", "120Mi", "1Gi")
		g.putAmount(pod.Spec.Overhead, v1.ResourceEphemeralStorage, "", "", "1Gi")
		g.putAmount(pod.Spec.Overhead, gpu, "", "", "", "1")
	}

	if g.hasLeaning("pod level") {
		g.podLevel(pod)
	}
}

func (g *podGenerator) drawContainer(name string) v1.Container {
	c := v1.Container{Name: name, Image: pickOne(g, imageNames...), Resources: v1.ResourceRequirements{Requests: g.drawRequests()}}
	if g.withChance(0.1) {
		c.Image = pickOne(g, "unknown:v1", imageNames[0]+"-alias", "docker.io/library/db")
	}

	for g.hasLeaning("ports") && len(c.Ports) < 3 {
		c.Ports = append(c.Ports, v1.ContainerPort{
			ContainerPort: 80, HostPort: pickOne(g, int32(0), 0, 80, 80, 8080, 9090),
			HostIP:   pickOne(g, "", "", "0.0.0.0", "127.0.0.1", "10.0.0.1", "::"),
			Protocol: pickOne(g, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP, ""),
		})
	}

	if g.hasLeaning("features") {
		c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyNever)
		c.RestartPolicyRules = []v1.ContainerRestartRule{{Action: pickOne(g, v1.ContainerRestartRuleActionRestart,
			v1.ContainerRestartRuleActionRestartAllContainers)}}
	}
	return c
}

func (g *podGenerator) drawRequests() v1.ResourceList {
	if g.withChance(0.15) {
		return nil
	}
	list := v1.ResourceList{}
	g.putAmount(list, v1.ResourceCPU, "", "0", "1m", "50m", "100m", "100m", "200m", "500m", "1")
	g.putAmount(list, v1.ResourceMemory, "", "0", "1", "1500m", "64Mi", "200Mi", "200Mi", "500Mi", "1Gi", "2Gi")
	if g.withChance(0.08) {
		g.putAmount(list, v1.ResourceEphemeralStorage, "0", "1Gi", "1.5Gi", "6Gi", "200Gi")
	}

	if g.withChance(0.07) {
		g.putAmount(list, gpu, "0", "1", "1", "2", "9")
	}
	if g.withChance(0.03) {
		g.putAmount(list, hugePages, "0", "2Mi", "64Mi")
		g.putAmount(list, giantPages, "", "", "1Gi", "3Gi")
	}

	if g.withChance(0.03) {
		g.putAmount(list, "example.com/foo", "0", "1")
	}
	if g.withChance(0.01) {
		g.putAmount(list, "example.com/nowhere", "0", "1")
	}
	return list
}

// hugeRequest gives a pending pod a request near the maximum of 64 bits, in its only container. The
// sum of this request and the requests on any node still fits into 64 bits, because larger sums
// overflow in upstream.
func (g *podGenerator) hugeRequest(pod *v1.Pod) {
	pod.Spec.Containers, pod.Spec.InitContainers, pod.Spec.Overhead, pod.Spec.Resources = pod.Spec.Containers[:1], nil, nil, nil
	list := v1.ResourceList{}
	switch g.IntN(3) {
	case 0:
		g.putAmount(list, v1.ResourceCPU, "4611686018427387", "9000000000000000")
	case 1:
		g.putAmount(list, v1.ResourceMemory, "4611686018427387904", "9000000000000000000")
	case 2:
		g.putAmount(list, pickOne(g, v1.ResourceEphemeralStorage, gpu, "example.com/foo"), "4611686018427387904", "9000000000000000000")
	}
	pod.Spec.Containers[0].Resources.Requests = list
}

// asksForHuge reports whether the pod has a huge request.
func asksForHuge(pod *v1.Pod) bool {
	for _, quantity := range pod.Spec.Containers[0].Resources.Requests {
		if quantity.Value() > 1<<50 {
			return true
		}
	}
	return false
}

// anyHuge reports whether a pending pod has a huge request.
func (g *generator) anyHuge() bool { return slices.ContainsFunc(g.w.Pending, asksForHuge) }

// podLevel gives the pod pod-level requests that are not less than its containers' requests,
// because the API server rejects smaller ones.
func (g *podGenerator) podLevel(pod *v1.Pod) {
	list := v1.ResourceList{}
	g.putAmount(list, v1.ResourceCPU, "", "8", "12")
	g.putAmount(list, v1.ResourceMemory, "", "16Gi", "24Gi")
	if g.withChance(0.5) { // without container requests, small pod-level requests are valid
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Resources.Requests = nil
		}
		for i := range pod.Spec.InitContainers {
			pod.Spec.InitContainers[i].Resources.Requests = nil
		}
		g.putAmount(list, v1.ResourceCPU, "", "0", "300m", "1")
		g.putAmount(list, v1.ResourceMemory, "", "0", "300Mi", "2Gi")
		g.putAmount(list, hugePages, "", "", "32Mi")
	}
	pod.Spec.Resources = &v1.ResourceRequirements{Requests: list}
}

// drawResize sets a status as written by a kubelet that resizes, or has resized, the pod in place.
func (g *podGenerator) drawResize(pod *v1.Pod) {
	report := func(containers []v1.Container, sidecarsOnly bool) (statuses []v1.ContainerStatus) {
		for i := range containers {
			c := &containers[i]
			if sidecarsOnly && (c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways) || g.withChance(0.2) {
				continue
			}
			status := v1.ContainerStatus{Name: c.Name, Image: c.Image, AllocatedResources: g.changeAmounts(c.Resources.Requests)}
			if g.withChance(0.8) {
				status.Resources = &v1.ResourceRequirements{Requests: g.changeAmounts(c.Resources.Requests)}
			}
			statuses = append(statuses, status)
		}
		return statuses
	}

	pod.Status.ContainerStatuses = report(pod.Spec.Containers, false)
	pod.Status.InitContainerStatuses = report(pod.Spec.InitContainers, g.withChance(0.8))
	if g.withChance(0.5) {
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{
			Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: pickOne(g, v1.PodReasonDeferred, v1.PodReasonInfeasible),
		})
	} else if g.withChance(0.3) {
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodResizeInProgress, Status: v1.ConditionTrue})
	}

	if pod.Spec.Resources != nil && g.withChance(0.5) {
		pod.Status.AllocatedResources = g.changeAmounts(pod.Spec.Resources.Requests)
		pod.Status.Resources = &v1.ResourceRequirements{Requests: g.changeAmounts(pod.Spec.Resources.Requests)}
	}
}

// changeAmounts returns a copy of the requests with some changes.
func (g *podGenerator) changeAmounts(list v1.ResourceList) v1.ResourceList {
	out := v1.ResourceList{}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, gpu,
		hugePages, giantPages, "example.com/foo"} {
		q, ok := list[name]
		if !ok {
			continue
		}
		if (name == v1.ResourceCPU || name == v1.ResourceMemory) && g.withChance(0.5) {
			factor := pickOne(g, int64(0), 1, 2, 3)
			q = *resource.NewMilliQuantity(q.MilliValue()/2*factor, q.Format)
		}
		out[name] = q
	}
	return out
}
