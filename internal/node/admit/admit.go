// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/qos"
)

// Refusal is the reason for not admitting a pod, in the kubelet's words. A nil Refusal admits the
// pod. Otherwise the pod becomes Failed, with the reason and message.
type Refusal struct{ Reason, Message string }

// Fit decides whether the node admits the pod in addition to the taken demands. It treats the pod
// as created through the API, regardless of its annotations. Unlike a kubelet, it does not preempt
// pods for a critical one.
//
// The order of the checks is the kubelet's, so that a pod that fails several of them gets the same
// reason.
func Fit(pod *v1.Pod, node *v1.Node, taken []Demand) *Refusal {
	if r := otherSystem(pod); r != nil {
		return r
	}
	wants := DemandOf(pod, false)
	if r := Room(wants, node, taken); r != nil {
		return r
	}
	if r := misfit(pod, wants, node, taken); r != nil {
		return r
	}
	return expelled(pod, node)
}

// systemCritical is the lowest priority of critical pods: scheduling.SystemCriticalPriority
// upstream.
const systemCritical = 2_000_000_000

// Critical reports whether the pod is admitted under pressure and never evicted because of it. This
// applies to static pods, their mirror pods, and pods with a system-critical priority. The source
// annotation is set by kubelets; a pod from the API server has no such annotation, or has the value
// "api".
func Critical(pod *v1.Pod) bool {
	_, mirror := pod.Annotations[v1.MirrorPodAnnotationKey]
	source := pod.Annotations["kubernetes.io/config.source"]
	return mirror || source != "" && source != "api" || pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical
}

// UnderPressure refuses BestEffort pods on a node under memory pressure, and all pods on a node
// under any other pressure. Critical pods are always admitted. conditions holds the node's present
// pressure conditions.
func UnderPressure(pod *v1.Pod, conditions []v1.NodeConditionType) *Refusal {
	if len(conditions) == 0 || Critical(pod) {
		return nil
	}
	if len(conditions) == 1 && conditions[0] == v1.NodeMemoryPressure {
		taint := &v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if qos.GetPodQOS(pod) != v1.PodQOSBestEffort || corev1.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, taint, true) {
			return nil
		}
	}
	return &Refusal{"Evicted", fmt.Sprintf("The node had condition: %v. ", conditions)}
}

// otherSystem refuses pods for systems other than Linux.
func otherSystem(pod *v1.Pod) *Refusal {
	// Upstream looks at the pod's label of this name, not at its selector.
	if os, ok := pod.Labels[v1.LabelOSStable]; ok && os != "linux" {
		return &Refusal{"PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != v1.Linux {
		return &Refusal{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// misfit returns the reason, other than insufficient resources, why the node must reject the pod.
// The scheduler filters nodes for the same reasons, but not for a pod created with a node name.
func misfit(pod *v1.Pod, wants Demand, node *v1.Node, taken []Demand) *Refusal {
	if matches, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); !matches {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return predicate("NodeName", "node(s) didn't match the requested node name")
	}
	for _, other := range taken {
		for _, port := range other.ports {
			if slices.ContainsFunc(wants.ports, func(wanted v1.ContainerPort) bool { return conflicts(port, wanted) }) {
				return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
			}
		}
	}
	return nil
}

// expelled refuses a pod that a taint of the node would evict immediately. The kubelet looks at
// NoExecute taints only: NoSchedule matters only to the scheduler.
func expelled(pod *v1.Pod, node *v1.Node) *Refusal {
	noExecute := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
	if _, untolerated := corev1.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations,
		noExecute, true); untolerated {
		return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	}
	return nil
}

// predicate returns a refusal by a scheduler filter shared with the kubelet. name is the name of
// the scheduler plugin.
func predicate(name, why string) *Refusal {
	return &Refusal{name, fmt.Sprintf("Predicate %s failed: %s", name, why)}
}
