// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Demand is a pod's demand on a node: quantities, overhead included, and host ports. It is
// immutable, and stays valid until the pod's object changes.
type Demand struct {
	amounts map[v1.ResourceName]int64
	ports   []v1.ContainerPort
}

// DemandOf returns a pod's demand, overhead included. For a placed pod, the present size of a
// resized container counts in addition to the spec, as reported in the status.
func DemandOf(pod *v1.Pod, placed bool) Demand {
	return Demand{amounts(rules.PodRequests(pod, resource.PodResourcesOptions{
		UseStatusResources: placed, InPlacePodLevelResourcesVerticalScalingEnabled: placed,
	})), hostPorts(pod)}
}

// conflicts reports whether pods with these two host ports exclude each other on a node.
func conflicts(a, b v1.ContainerPort) bool {
	return a.HostPort == b.HostPort && a.Protocol == b.Protocol &&
		(a.HostIP == b.HostIP || a.HostIP == "0.0.0.0" || b.HostIP == "0.0.0.0")
}

// hostPorts returns a pod's host ports with defaults: an empty address in the API means 0.0.0.0.
func hostPorts(pod *v1.Pod) []v1.ContainerPort {
	ports := rules.HostPorts(pod)
	for i := range ports {
		ports[i].HostIP = cmp.Or(ports[i].HostIP, "0.0.0.0")
		ports[i].Protocol = cmp.Or(ports[i].Protocol, v1.ProtocolTCP)
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

// shortage is a lack of one resource: requested and used together exceed capacity.
type shortage struct {
	name                      v1.ResourceName
	requested, used, capacity int64
}

// lacking returns the shortages, in the kubelet's order: pods, CPU, memory, ephemeral storage, then
// everything else by name. An extended resource not reported by the node is ignored. Amounts are
// compared in whole units, CPU in thousandths.
func lacking(wants Demand, node *v1.Node, taken []Demand) []shortage {
	room, used := amounts(node.Status.Allocatable), map[v1.ResourceName]int64{}
	for _, demand := range taken {
		for name, n := range demand.amounts {
			used[name] = rules.Sum(used[name], n)
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
		if wants.amounts[name] == 0 || !known && rules.IsExtendedResource(name) {
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
		s := short[0]
		// The message is the kubelet's.
		return &Refusal{"OutOf" + string(s.name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			s.name, s.requested, s.used, s.capacity)}
	}
	return nil
}
