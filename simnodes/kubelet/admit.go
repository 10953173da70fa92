package kubelet

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// rejection is a kubelet's refusal of a pod, in upstream's words.
type rejection struct{ reason, message string }

// demand is what a pod takes of a node: quantities in the scheduler's units
// (cpu in thousandths, the rest in ones), and ports of the node.
type demand struct {
	amounts map[v1.ResourceName]int64
	ports   []hostPort
}

type hostPort struct {
	ip       string
	protocol v1.Protocol
	port     int32
}

func demandOf(pod *v1.Pod, asPlaced bool) demand {
	list := resource.PodRequests(pod, resource.PodResourcesOptions{
		UseStatusResources: asPlaced,
		InPlacePodLevelResourcesVerticalScalingEnabled: asPlaced,
	})
	return demand{amounts: amounts(list), ports: hostPorts(pod)}
}

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

// hostPorts are those of the containers that run all the time: sidecars, not
// other init containers.
func hostPorts(pod *v1.Pod) []hostPort {
	var ports []hostPort
	add := func(c *v1.Container) {
		for _, port := range c.Ports {
			if port.HostPort <= 0 {
				continue
			}
			p := hostPort{port.HostIP, port.Protocol, port.HostPort}
			if p.ip == "" {
				p.ip = "0.0.0.0"
			}
			if p.protocol == "" {
				p.protocol = v1.ProtocolTCP
			}
			ports = append(ports, p)
		}
	}
	for i := range pod.Spec.InitContainers {
		if isSidecar(&pod.Spec.InitContainers[i]) {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

func (a hostPort) conflicts(b hostPort) bool {
	return a.port == b.port && a.protocol == b.protocol &&
		(a.ip == b.ip || a.ip == "0.0.0.0" || b.ip == "0.0.0.0")
}

// admit asks what a kubelet asks before it takes a pod: the scheduler's checks
// for resources, node affinity and ports against the pods already there, and
// NoExecute taints. Of several failures the kubelet reports the first.
func admit(pod *v1.Pod, node *v1.Node, there []demand) *rejection {
	// Upstream looks at the pod's label of this name, not at its selector.
	if os, ok := pod.Labels[v1.LabelOSStable]; ok && os != "linux" {
		return &rejection{"PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != v1.Linux {
		return &rejection{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	wants := demandOf(pod, false)
	if r := fits(wants.amounts, node, there); r != nil {
		return r
	}
	if matches, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); !matches {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	for _, other := range there {
		for _, taken := range other.ports {
			if slices.ContainsFunc(wants.ports, taken.conflicts) {
				return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
			}
		}
	}
	noExecute := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
	if _, untolerated := corev1.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, noExecute, true); untolerated {
		return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	}
	return nil
}

func predicate(name, why string) *rejection {
	return &rejection{name, fmt.Sprintf("Predicate %s failed: %s", name, why)}
}

// fits compares in the kubelet's order: pods, cpu, memory, ephemeral storage,
// then everything else by name. An extended resource that the node does not
// know at all is not the kubelet's business.
func fits(wants map[v1.ResourceName]int64, node *v1.Node, there []demand) *rejection {
	room := amounts(node.Status.Allocatable)
	if pods := room[v1.ResourcePods]; int64(len(there))+1 > pods {
		return outOf(v1.ResourcePods, 1, int64(len(there)), pods)
	}
	first := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	rest := slices.DeleteFunc(sortedKeys(wants), func(n v1.ResourceName) bool { return slices.Contains(first, n) })
	for _, name := range append(first, rest...) {
		capacity, known := room[name]
		if wants[name] == 0 || !known && isExtended(name) {
			continue
		}
		var used int64
		for _, d := range there {
			used += d.amounts[name]
		}
		if wants[name] > capacity-used {
			return outOf(name, wants[name], used, capacity)
		}
	}
	return nil
}

func outOf(name v1.ResourceName, requested, used, capacity int64) *rejection {
	return &rejection{
		reason: "OutOf" + string(name),
		message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			name, requested, used, capacity),
	}
}

func isExtended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(string(name), v1.DefaultResourceRequestsPrefix)
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
