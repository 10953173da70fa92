// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Demand is a pod's demand on a node: quantities, overhead included, and host ports. It is
// immutable, and stays valid until the pod's object changes.
type Demand struct {
	amounts map[v1.ResourceName]int64
	ports   []hostPort
}

// DemandOf returns a pod's demand. For a placed pod, the resources in the containers' statuses
// count in addition to the spec; see requests.
func DemandOf(pod *v1.Pod, placed bool) Demand { return Demand{requests(pod, placed), hostPorts(pod)} }

// hostPort is a port of the node. An empty address in the API becomes 0.0.0.0.
type hostPort struct {
	ip       string
	protocol v1.Protocol
	port     int32
}

// conflicts reports whether pods with these two ports exclude each other on a node.
func (a hostPort) conflicts(b hostPort) bool {
	return a.port == b.port && a.protocol == b.protocol && (a.ip == b.ip || a.ip == "0.0.0.0" || b.ip == "0.0.0.0")
}

// hostPorts returns the host ports of long-running containers: regular ones and sidecars, but not
// other init containers. Port 0 does not count.
func hostPorts(pod *v1.Pod) []hostPort {
	var ports []hostPort
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			port := hostPort{p.HostIP, p.Protocol, p.HostPort}
			port.ip = cmp.Or(port.ip, "0.0.0.0")
			port.protocol = cmp.Or(port.protocol, v1.ProtocolTCP)
			ports = append(ports, port)
		}
	}

	// An init container that ends before the next container starts is not counted.
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}

	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

// amounts converts to the scheduler's units: CPU in thousandths, everything else in whole units.
func amounts(list v1.ResourceList) map[v1.ResourceName]int64 {
	out := make(map[v1.ResourceName]int64, len(list))
	for name, quantity := range list {
		if name == v1.ResourceCPU {
			out[name] = quantity.MilliValue()
		} else {
			out[name] = quantity.Value()
		}
	}
	return out
}

// requests returns a pod's requests, overhead included. For a placed pod, the present size of a
// resized container counts as well, as reported in the status.
func requests(pod *v1.Pod, placed bool) map[v1.ResourceName]int64 {
	return amounts(rules.PodRequests(pod, resource.PodResourcesOptions{
		UseStatusResources: placed, InPlacePodLevelResourcesVerticalScalingEnabled: placed,
	}))
}

// shortage is a lack of one resource: requested and used together exceed capacity.
type shortage struct {
	name                      v1.ResourceName
	requested, used, capacity int64
}

// sum adds two non-negative amounts. It saturates.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// refusal describes the shortage in the kubelet's words.
func (s shortage) refusal() *Refusal {
	return &Refusal{"OutOf" + string(s.name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		s.name, s.requested, s.used, s.capacity)}
}

// lacking returns the shortages, in the kubelet's order: pods, CPU, memory, ephemeral storage, then
// everything else by name. An extended resource not reported by the node is ignored. Amounts are
// compared in whole units, CPU in thousandths.
func lacking(wants Demand, node *v1.Node, taken []Demand) []shortage {
	room, used := amounts(node.Status.Allocatable), map[v1.ResourceName]int64{}
	for _, demand := range taken {
		for name, n := range demand.amounts {
			used[name] = sum(used[name], n)
		}
	}

	var out []shortage
	// Count the pod itself.
	if pods := room[v1.ResourcePods]; int64(len(taken))+1 > pods {
		out = append(out, shortage{v1.ResourcePods, 1, int64(len(taken)), pods})
	}

	first := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	rest := slices.DeleteFunc(slices.Sorted(maps.Keys(wants.amounts)), func(n v1.ResourceName) bool { return slices.Contains(first, n) })
	for _, name := range append(first, rest...) {
		capacity, known := room[name]
		// As in the kubelet, skip cluster-level resources, which nodes do not report.
		if wants.amounts[name] == 0 || !known && extended(name) {
			continue
		}
		if wants.amounts[name] > capacity-used[name] {
			out = append(out, shortage{name, wants.amounts[name], used[name], capacity})
		}
	}

	return out
}

// Room returns a refusal for the first resource that is short, or nil if none is. It is also used
// to decide whether a running pod may be resized.
func Room(wants Demand, node *v1.Node, taken []Demand) *Refusal {
	if short := lacking(wants, node, taken); len(short) > 0 {
		return short[0].refusal()
	}
	return nil
}

// extended reports whether a resource is an extended resource, with a domain other than
// Kubernetes'.
func extended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(string(name), v1.DefaultResourceRequestsPrefix)
}
