package admit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

type hostPort struct {
	ip       string
	protocol v1.Protocol
	port     int32
}

func (a hostPort) conflicts(b hostPort) bool {
	return a.port == b.port && a.protocol == b.protocol && (a.ip == b.ip || a.ip == "0.0.0.0" || b.ip == "0.0.0.0")
}

// hostPorts are those of the containers that run all the time: sidecars, not other init containers.
func hostPorts(pod *v1.Pod) []hostPort {
	var ports []hostPort
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			port := hostPort{p.HostIP, p.Protocol, p.HostPort}
			if port.ip == "" {
				port.ip = "0.0.0.0"
			}
			if port.protocol == "" {
				port.protocol = v1.ProtocolTCP
			}
			ports = append(ports, port)
		}
	}
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

// amounts in the scheduler's units: cpu in thousandths, the rest in ones.
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

// requests of a pod, overhead included.
func requests(pod *v1.Pod, placed bool) map[v1.ResourceName]int64 {
	return amounts(resource.PodRequests(pod, resource.PodResourcesOptions{
		UseStatusResources: placed, InPlacePodLevelResourcesVerticalScalingEnabled: placed,
	}))
}

// shortage of a resource.
type shortage struct {
	name                      v1.ResourceName
	requested, used, capacity int64
}

func (s shortage) missing() int64 { return s.requested - (s.capacity - s.used) }

func (s shortage) refusal() *Refusal {
	return &Refusal{"OutOf" + string(s.name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		s.name, s.requested, s.used, s.capacity)}
}

// lacking is what there is not enough of, in the kubelet's order: pods, cpu, memory, ephemeral storage, then everything else by
// name. An extended resource that the node does not know at all is not its business.
func lacking(in Input) []shortage {
	room, wants := amounts(in.Node.Status.Allocatable), requests(in.Pod, false)
	used := map[v1.ResourceName]int64{}
	for _, pod := range in.Taken {
		for name, n := range requests(pod, true) {
			used[name] += n
		}
	}
	var out []shortage
	if pods := room[v1.ResourcePods]; int64(len(in.Taken))+1 > pods {
		out = append(out, shortage{v1.ResourcePods, 1, int64(len(in.Taken)), pods})
	}
	first := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	rest := slices.DeleteFunc(slices.Sorted(maps.Keys(wants)), func(n v1.ResourceName) bool { return slices.Contains(first, n) })
	for _, name := range append(first, rest...) {
		capacity, known := room[name]
		if wants[name] == 0 || !known && extended(name) {
			continue
		}
		if wants[name] > capacity-used[name] {
			out = append(out, shortage{name, wants[name], used[name], capacity})
		}
	}
	return out
}

func extended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(string(name), v1.DefaultResourceRequestsPrefix)
}
