// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// RunsDaemon reports whether the DaemonSet's controller wants a pod on the node. It considers the
// node's name, labels and taints, but not its free room: without room, the pod is created and stays
// pending.
func RunsDaemon(set *appsv1.DaemonSet, node *v1.Node) bool { return NodesOf(set)(node) }

// NodesOf returns a function equivalent to RunsDaemon for one set. It reads the set's template
// once, since a template with tens of thousands of terms takes long to read. The function is valid
// until the set changes.
func NodesOf(set *appsv1.DaemonSet) func(*v1.Node) bool {
	spec := set.Spec.Template.Spec
	spec.Tolerations = slices.Clone(spec.Tolerations)
	tolerateNodeTrouble(&spec)
	affinity := nodeaffinity.NewRequiredNodeAffinity(spec.NodeSelector, spec.Affinity)
	return func(node *v1.Node) bool {
		if spec.NodeName != "" && spec.NodeName != node.Name {
			return false
		}
		fits, err := affinity.Match(node)
		return err == nil && fits && rules.Untolerated(node.Spec.Taints, spec.Tolerations, rules.KeepsOff) == nil
	}
}

// DaemonNode returns the node of a DaemonSet's pod: the node it is bound to, or the node to which
// its controller has pinned it by affinity; "" if neither.
func DaemonNode(pod *v1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, r := range term.MatchFields {
			if r.Key == metav1.ObjectNameField && r.Operator == v1.NodeSelectorOpIn && len(r.Values) == 1 {
				return r.Values[0]
			}
		}
	}
	return ""
}

// DaemonPod returns the pod created by the DaemonSet's controller for one node, without a name.
func DaemonPod(set *appsv1.DaemonSet, node string) *v1.Pod {
	pod := Of(set).NewPod()
	tolerateNodeTrouble(&pod.Spec)
	PinTo(pod, node)
	return pod
}

// PinTo restricts a pod to one node, like the DaemonSet's controller: the node's name replaces the
// template's required node affinity, which the node meets. It changes the pod.
func PinTo(pod *v1.Pod, node string) {
	pod.Spec.Affinity = cmp.Or(pod.Spec.Affinity, &v1.Affinity{})
	pod.Spec.Affinity.NodeAffinity = cmp.Or(pod.Spec.Affinity.NodeAffinity, &v1.NodeAffinity{})
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{node},
		}}}},
	}
}

// tolerateNodeTrouble adds the tolerations that keep a DaemonSet's pod on an unhealthy node,
// because such pods often serve to repair the node. The list is upstream's
// AddOrUpdateDaemonPodTolerations.
func tolerateNodeTrouble(spec *v1.PodSpec) {
	tolerate := func(key string, effect v1.TaintEffect) {
		wanted := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: effect}
		for i := range spec.Tolerations {
			if spec.Tolerations[i].MatchToleration(&wanted) {
				spec.Tolerations[i] = wanted // without a time limit
				return
			}
		}
		spec.Tolerations = append(spec.Tolerations, wanted)
	}

	tolerate(v1.TaintNodeNotReady, v1.TaintEffectNoExecute)
	tolerate(v1.TaintNodeUnreachable, v1.TaintEffectNoExecute)
	tolerate(v1.TaintNodeDiskPressure, v1.TaintEffectNoSchedule)
	tolerate(v1.TaintNodeMemoryPressure, v1.TaintEffectNoSchedule)
	tolerate(v1.TaintNodePIDPressure, v1.TaintEffectNoSchedule)
	tolerate(v1.TaintNodeUnschedulable, v1.TaintEffectNoSchedule)
	if spec.HostNetwork {
		tolerate(v1.TaintNodeNetworkUnavailable, v1.TaintEffectNoSchedule)
	}
}
