// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file defines the fields of a pod that determine its class: two pods with the same digest are
// equivalent to every decision. The digests of parts (Needs, Static) serve narrower purposes, such
// as whether two classes can share a ranking of nodes.

// classDigest hashes every field of the pod that may affect a decision, except for individual
// fields (name, UID, times, node, nominated node). It also returns the digest of the pod's needs. A
// field read by some plugin must be hashed here; TestEveryPodFieldIsDecidedOn checks all fields of
// the API's pod spec. The UID of the controller is omitted: like upstream's plugins, Berth's
// plugins find workloads by name, so a workload recreated under its name has the same class. Order
// matters for lists of the API, but not for maps.
func classDigest(pod *v1.Pod) (key, needs digest) {
	var h hasher
	h.stringMap(pod.Labels)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		h.addString(owner.APIVersion)
		h.addString(owner.Kind)
		h.addString(owner.Name)
	} else {
		h.addBool(false)
	}
	needs = needsDigest(pod) // includes the namespace
	h.addWord(needs[0])
	h.addWord(needs[1])
	h.addVolumes(pod)
	h.addGroup(pod.Spec.SchedulingGroup)
	return h.sum(), needs
}

// addGroup hashes the name of the pod's group, so that pods of different groups never share
// per-class data.
func (h *hasher) addGroup(g *v1.PodSchedulingGroup) {
	h.addBool(g != nil)
	if g != nil && g.PodGroupName != nil {
		h.addString(*g.PodGroupName)
	}
}

// needsDigest computes PodClass.Needs.
func needsDigest(pod *v1.Pod) digest {
	var h hasher
	h.addString(pod.Namespace)
	h.addNeeds(pod)
	return h.sum()
}

// staticDigest computes PodClass.Static.
func staticDigest(pod *v1.Pod, targeted bool) digest {
	var h hasher
	h.addStatic(&pod.Spec, targeted)
	for _, list := range [2][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for j := range list[i].RestartPolicyRules {
				h.addString(string(list[i].RestartPolicyRules[j].Action))
			}
		}
	}
	return h.sum()
}

// addStatic hashes the spec's requirements on single nodes. If targeted is true, addStatic omits
// the required node affinity, which is covered by PodClass.Target.
func (h *hasher) addStatic(spec *v1.PodSpec, targeted bool) {
	h.stringMap(spec.NodeSelector)
	h.addTolerations(spec.Tolerations)
	h.addBool(spec.Affinity != nil)
	if spec.Affinity != nil {
		h.nodeAffinity(spec.Affinity.NodeAffinity, targeted)
	}
	h.addBool(spec.HostNetwork)
	h.addBool(spec.HostUsers != nil && !*spec.HostUsers)
	h.optionalString(spec.RuntimeClassName)
}

// addNeeds hashes the contents of Needs, except for the namespace: it adds the fields hashed by
// addShape and the constraints about other pods.
func (h *hasher) addNeeds(pod *v1.Pod) {
	h.addShape(pod)
	if a := pod.Spec.Affinity; a != nil {
		h.addAffinity(&v1.Affinity{PodAffinity: a.PodAffinity, PodAntiAffinity: a.PodAntiAffinity})
	}
	h.addSpread(pod.Spec.TopologySpreadConstraints)
}

// addShape hashes the pod without constraints about other pods: its properties, requests, and
// requirements on nodes.
func (h *hasher) addShape(pod *v1.Pod) {
	spec := &pod.Spec
	h.addString(spec.SchedulerName)
	h.optionalInt32(spec.Priority)
	h.addString(spec.PriorityClassName)
	h.addBool(spec.PreemptionPolicy != nil && *spec.PreemptionPolicy == v1.PreemptNever)
	h.addStatic(spec, false)
	h.addResources(spec.Overhead)
	h.addBool(spec.Resources != nil)
	if spec.Resources != nil {
		h.addResources(spec.Resources.Requests)
		h.addResources(spec.Resources.Limits)
	}

	h.addContainers(spec.InitContainers)
	h.addContainers(spec.Containers)
	h.addWord(uint64(len(spec.SchedulingGates)))
	for i := range spec.SchedulingGates {
		h.addString(spec.SchedulingGates[i].Name)
	}
	h.addResized(pod)
}

// addTolerations hashes tolerations, except for tolerationSeconds, which do not affect decisions.
func (h *hasher) addTolerations(list []v1.Toleration) {
	h.addWord(uint64(len(list)))
	for i := range list {
		t := &list[i]
		h.addString(t.Key)
		h.addString(string(t.Operator))
		h.addString(t.Value)
		h.addString(string(t.Effect))
	}
}

// addAffinity hashes affinity to nodes and pods; nil differs from an empty affinity.
func (h *hasher) addAffinity(a *v1.Affinity) {
	h.addBool(a != nil)
	if a == nil {
		return
	}
	h.nodeAffinity(a.NodeAffinity, false)
	h.addBool(a.PodAffinity != nil)
	if p := a.PodAffinity; p != nil {
		h.podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution)
		h.weightedPodTerms(p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	h.addBool(a.PodAntiAffinity != nil)
	if p := a.PodAntiAffinity; p != nil {
		h.podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution)
		h.weightedPodTerms(p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// nodeAffinity hashes the affinity to nodes; preferredOnly omits the required terms.
func (h *hasher) nodeAffinity(a *v1.NodeAffinity, preferredOnly bool) {
	h.addBool(a != nil)
	if a == nil {
		return
	}

	required := a.RequiredDuringSchedulingIgnoredDuringExecution
	if preferredOnly {
		required = nil
	}

	h.addBool(required != nil)
	if required != nil {
		h.addWord(uint64(len(required.NodeSelectorTerms)))
		for i := range required.NodeSelectorTerms {
			h.nodeTerm(&required.NodeSelectorTerms[i])
		}
	}

	h.addWord(uint64(len(a.PreferredDuringSchedulingIgnoredDuringExecution)))
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		term := &a.PreferredDuringSchedulingIgnoredDuringExecution[i]
		h.addInt(int64(term.Weight))
		h.nodeTerm(&term.Preference)
	}
}

// nodeTerm hashes expressions and fields, in order.
func (h *hasher) nodeTerm(t *v1.NodeSelectorTerm) {
	for _, list := range [2][]v1.NodeSelectorRequirement{t.MatchExpressions, t.MatchFields} {
		h.addWord(uint64(len(list)))
		for i := range list {
			h.addString(list[i].Key)
			h.addString(string(list[i].Operator))
			h.addStrings(list[i].Values)
		}
	}
}

// podTerms hashes required terms.
func (h *hasher) podTerms(list []v1.PodAffinityTerm) {
	h.addWord(uint64(len(list)))
	for i := range list {
		h.podTerm(&list[i])
	}
}

// weightedPodTerms hashes preferred terms.
func (h *hasher) weightedPodTerms(list []v1.WeightedPodAffinityTerm) {
	h.addWord(uint64(len(list)))
	for i := range list {
		h.addInt(int64(list[i].Weight))
		h.podTerm(&list[i].PodAffinityTerm)
	}
}

// podTerm hashes one term, except for matchLabelKeys, which the API server has merged into the
// selector.
func (h *hasher) podTerm(t *v1.PodAffinityTerm) {
	h.labelSelector(t.LabelSelector)
	h.addStrings(t.Namespaces)
	h.addString(t.TopologyKey)
	h.labelSelector(t.NamespaceSelector)
}

// addSpread hashes spread constraints. A missing policy equals its default.
func (h *hasher) addSpread(list []v1.TopologySpreadConstraint) {
	h.addWord(uint64(len(list)))
	for i := range list {
		c := &list[i]
		h.addInt(int64(c.MaxSkew))
		h.addString(c.TopologyKey)
		h.addString(string(c.WhenUnsatisfiable))
		h.labelSelector(c.LabelSelector)
		h.optionalInt32(c.MinDomains)
		h.addBool(c.NodeAffinityPolicy != nil && *c.NodeAffinityPolicy == v1.NodeInclusionPolicyIgnore)
		h.addBool(c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == v1.NodeInclusionPolicyHonor)
		h.addStrings(c.MatchLabelKeys)
	}
}

// addContainers hashes images, requests, host ports and restart rules, and the name of a container
// with requests beyond CPU and memory.
func (h *hasher) addContainers(list []v1.Container) {
	h.addWord(uint64(len(list)))
	for i := range list {
		c := &list[i]
		h.addString(c.Image)
		if more := h.addResources(c.Resources.Requests); more {
			h.addString(c.Name) // allocated devices are recorded under the container's name
		}
		h.addBool(c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways)
		h.addWord(uint64(len(c.RestartPolicyRules)))
		for j := range c.RestartPolicyRules {
			h.addString(string(c.RestartPolicyRules[j].Action))
		}
		// Omit container ports, which are documentation. Host ports can conflict.
		for j := range c.Ports {
			if p := &c.Ports[j]; p.HostPort > 0 {
				h.addString(p.HostIP)
				h.addString(string(p.Protocol))
				h.addInt(int64(p.HostPort))
			}
		}
		h.addBool(false)
	}
}

// addVolumes hashes the volumes relevant to placement. A pod with an ephemeral claim, which
// contains the pod's name, or with devices, which are allocated to a single pod, has a separate
// class.
func (h *hasher) addVolumes(pod *v1.Pod) {
	personal := isPersonal(pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !volumeMatters(v) {
			continue
		}
		personal = personal || v.Ephemeral != nil
		h.addString(v.Name)
		encoded, err := v.VolumeSource.Marshal()
		if err != nil { // cannot happen for a decoded object; if it does, share nothing
			personal = true
		}
		h.addBytes(encoded)
	}

	h.addBool(personal)
	if personal {
		h.addString(pod.Name)
		h.addString(string(pod.UID))
		encoded, _ := pod.Status.Marshal()
		h.addBytes(encoded)
	}
}

// isPersonal reports whether a pod has a separate class regardless of its volumes.
func isPersonal(pod *v1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0
}

// volumeMatters reports whether a volume can keep a pod off a node or draw it there. Every node can
// provide all other kinds of volumes.
func volumeMatters(v *v1.Volume) bool {
	return v.ConfigMap == nil && v.Secret == nil && v.Projected == nil && v.EmptyDir == nil && v.DownwardAPI == nil && v.HostPath == nil
}

// isResized reports whether a kubelet has reported amounts that may differ from the spec's
// requests.
func isResized(s *v1.PodStatus) bool {
	for _, list := range [2][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			if list[i].Resources != nil || list[i].AllocatedResources != nil {
				return true
			}
		}
	}
	return s.Resources != nil || s.AllocatedResources != nil
}

// addResized hashes the amounts reported by a kubelet for containers resized in place; they replace
// the spec's amounts for the containers with these names.
func (h *hasher) addResized(pod *v1.Pod) {
	s := &pod.Status
	// Container names matter only if amounts are reported under them.
	if isResized(s) {
		for _, list := range [2][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				h.addString(list[i].Name)
			}
		}
	}

	for _, list := range [2][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			if c.Resources == nil && c.AllocatedResources == nil {
				continue
			}
			h.addString(c.Name)
			h.addResources(c.AllocatedResources)
			if c.Resources != nil {
				h.addResources(c.Resources.Requests)
			}
		}
	}

	if s.Resources != nil || s.AllocatedResources != nil {
		h.addResources(s.AllocatedResources)
		if s.Resources != nil {
			h.addResources(s.Resources.Requests)
		}
	}

	// A refused or deferred resize may change which amounts count.
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == v1.PodResizePending {
			h.addString(string(c.Status))
			h.addString(c.Reason)
		}
	}
}
