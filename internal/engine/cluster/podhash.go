package cluster

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// classDigest hashes what the pod needs, which it also returns, and all in all every field of the
// pod that a decision may depend on, and none that is the pod's own (name, UID, times, node,
// nominated node). A field that some plugin reads must be hashed here; TestEveryPodFieldIsDecidedOn
// lists every field of the API and whether it is. Of the controller the UID is left out: plugins
// find workloads by their names, as upstream's do, so a workload that is made anew under its name
// has the same class.
func classDigest(pod *v1.Pod) (key, needs digest) {
	var h hasher
	h.stringMap(pod.Labels)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		h.string(owner.APIVersion)
		h.string(owner.Kind)
		h.string(owner.Name)
	} else {
		h.bool(false)
	}
	needs = needsDigest(pod) // which has the namespace
	h.word(needs[0])
	h.word(needs[1])
	h.volumes(pod)
	h.group(pod.Spec.SchedulingGroup)
	return h.sum(), needs
}

// group hashes the name of the pod's group, so that pods of different groups never share anything
// that is kept per class.
func (h *hasher) group(g *v1.PodSchedulingGroup) {
	h.bool(g != nil)
	if g != nil && g.PodGroupName != nil {
		h.string(*g.PodGroupName)
	}
}

// needsDigest computes PodClass.Needs.
func needsDigest(pod *v1.Pod) digest {
	var h hasher
	h.string(pod.Namespace)
	h.needs(pod)
	return h.sum()
}

// staticDigest computes PodClass.Static.
func staticDigest(pod *v1.Pod, targeted bool) digest {
	var h hasher
	h.static(&pod.Spec, targeted)
	for _, list := range [2][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for j := range list[i].RestartPolicyRules {
				h.string(string(list[i].RestartPolicyRules[j].Action))
			}
		}
	}
	return h.sum()
}

// static hashes what the spec needs from single nodes. targeted leaves out the required node
// affinity, which PodClass.Target covers.
func (h *hasher) static(spec *v1.PodSpec, targeted bool) {
	h.stringMap(spec.NodeSelector)
	h.tolerations(spec.Tolerations)
	h.bool(spec.Affinity != nil)
	if spec.Affinity != nil {
		h.nodeAffinity(spec.Affinity.NodeAffinity, targeted)
	}
	h.bool(spec.HostNetwork)
	h.bool(spec.HostUsers != nil && !*spec.HostUsers)
	h.optionalString(spec.RuntimeClassName)
}

func (h *hasher) needs(pod *v1.Pod) {
	h.shape(pod)
	if a := pod.Spec.Affinity; a != nil {
		h.affinity(&v1.Affinity{PodAffinity: a.PodAffinity, PodAntiAffinity: a.PodAntiAffinity})
	}
	h.spread(pod.Spec.TopologySpreadConstraints)
}

func (h *hasher) shape(pod *v1.Pod) {
	spec := &pod.Spec
	h.string(spec.SchedulerName)
	h.optionalInt32(spec.Priority)
	h.bool(spec.PreemptionPolicy != nil && *spec.PreemptionPolicy == v1.PreemptNever)
	h.static(spec, false)
	h.resources(spec.Overhead)
	h.bool(spec.Resources != nil)
	if spec.Resources != nil {
		h.resources(spec.Resources.Requests)
		h.resources(spec.Resources.Limits)
	}

	h.containers(spec.InitContainers)
	h.containers(spec.Containers)
	h.word(uint64(len(spec.SchedulingGates)))
	for i := range spec.SchedulingGates {
		h.string(spec.SchedulingGates[i].Name)
	}
	h.resized(pod)
}

func (h *hasher) tolerations(list []v1.Toleration) {
	h.word(uint64(len(list)))
	for i := range list {
		t := &list[i]
		h.string(t.Key)
		h.string(string(t.Operator))
		h.string(t.Value)
		h.string(string(t.Effect))
	}
}

func (h *hasher) affinity(a *v1.Affinity) {
	h.bool(a != nil)
	if a == nil {
		return
	}
	h.nodeAffinity(a.NodeAffinity, false)
	h.bool(a.PodAffinity != nil)
	if p := a.PodAffinity; p != nil {
		h.podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution)
		h.weightedPodTerms(p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	h.bool(a.PodAntiAffinity != nil)
	if p := a.PodAntiAffinity; p != nil {
		h.podTerms(p.RequiredDuringSchedulingIgnoredDuringExecution)
		h.weightedPodTerms(p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func (h *hasher) nodeAffinity(a *v1.NodeAffinity, preferredOnly bool) {
	h.bool(a != nil)
	if a == nil {
		return
	}

	required := a.RequiredDuringSchedulingIgnoredDuringExecution
	if preferredOnly {
		required = nil
	}

	h.bool(required != nil)
	if required != nil {
		h.word(uint64(len(required.NodeSelectorTerms)))
		for i := range required.NodeSelectorTerms {
			h.nodeTerm(&required.NodeSelectorTerms[i])
		}
	}

	h.word(uint64(len(a.PreferredDuringSchedulingIgnoredDuringExecution)))
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		term := &a.PreferredDuringSchedulingIgnoredDuringExecution[i]
		h.int(int64(term.Weight))
		h.nodeTerm(&term.Preference)
	}
}

func (h *hasher) nodeTerm(t *v1.NodeSelectorTerm) {
	for _, list := range [2][]v1.NodeSelectorRequirement{t.MatchExpressions, t.MatchFields} {
		h.word(uint64(len(list)))
		for i := range list {
			h.string(list[i].Key)
			h.string(string(list[i].Operator))
			h.strings(list[i].Values)
		}
	}
}

func (h *hasher) podTerms(list []v1.PodAffinityTerm) {
	h.word(uint64(len(list)))
	for i := range list {
		h.podTerm(&list[i])
	}
}

func (h *hasher) weightedPodTerms(list []v1.WeightedPodAffinityTerm) {
	h.word(uint64(len(list)))
	for i := range list {
		h.int(int64(list[i].Weight))
		h.podTerm(&list[i].PodAffinityTerm)
	}
}

// podTerm leaves out matchLabelKeys, which the API server has merged into the selector.
func (h *hasher) podTerm(t *v1.PodAffinityTerm) {
	h.labelSelector(t.LabelSelector)
	h.strings(t.Namespaces)
	h.string(t.TopologyKey)
	h.labelSelector(t.NamespaceSelector)
}

func (h *hasher) spread(list []v1.TopologySpreadConstraint) {
	h.word(uint64(len(list)))
	for i := range list {
		c := &list[i]
		h.int(int64(c.MaxSkew))
		h.string(c.TopologyKey)
		h.string(string(c.WhenUnsatisfiable))
		h.labelSelector(c.LabelSelector)
		h.optionalInt32(c.MinDomains)
		h.bool(c.NodeAffinityPolicy != nil && *c.NodeAffinityPolicy == v1.NodeInclusionPolicyIgnore)
		h.bool(c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == v1.NodeInclusionPolicyHonor)
		h.strings(c.MatchLabelKeys)
	}
}

func (h *hasher) containers(list []v1.Container) {
	h.word(uint64(len(list)))
	for i := range list {
		c := &list[i]
		h.string(c.Image)
		if more := h.resources(c.Resources.Requests); more {
			h.string(c.Name) // under which devices for it are recorded
		}
		h.bool(c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways)
		h.word(uint64(len(c.RestartPolicyRules)))
		for j := range c.RestartPolicyRules {
			h.string(string(c.RestartPolicyRules[j].Action))
		}
		for j := range c.Ports {
			if p := &c.Ports[j]; p.HostPort > 0 {
				h.string(p.HostIP)
				h.string(string(p.Protocol))
				h.int(int64(p.HostPort))
			}
		}
		h.bool(false)
	}
}

// volumes hashes the volumes that matter to placement. An ephemeral claim carries its pod's name,
// and devices are allocated to one pod, so such a pod is a class of its own.
func (h *hasher) volumes(pod *v1.Pod) {
	personal := isPersonal(pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !volumeMatters(v) {
			continue
		}
		personal = personal || v.Ephemeral != nil
		h.string(v.Name)
		encoded, err := v.VolumeSource.Marshal()
		if err != nil { // cannot happen for an object that was decoded; if it does, share nothing
			personal = true
		}
		h.bytes(encoded)
	}
	h.bool(personal)
	if personal {
		h.string(pod.Name)
		h.string(string(pod.UID))
		encoded, _ := pod.Status.Marshal()
		h.bytes(encoded)
	}
}

// isPersonal reports whether a pod is a class of its own regardless of its volumes.
func isPersonal(pod *v1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0
}

// volumeMatters reports whether a volume can keep a pod off a node or draw it there. Every node can
// provide the others.
func volumeMatters(v *v1.Volume) bool {
	return v.ConfigMap == nil && v.Secret == nil && v.Projected == nil && v.EmptyDir == nil && v.DownwardAPI == nil && v.HostPath == nil
}

// isResized reports whether a kubelet has reported amounts that differ from the spec's requests.
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

// resized hashes the amounts that a kubelet reports for containers resized in place; they count
// instead of those that the spec has for the containers of these names.
func (h *hasher) resized(pod *v1.Pod) {
	s := &pod.Status
	if isResized(s) {
		for _, list := range [2][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				h.string(list[i].Name)
			}
		}
	}

	for _, list := range [2][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			if c.Resources == nil && c.AllocatedResources == nil {
				continue
			}
			h.string(c.Name)
			h.resources(c.AllocatedResources)
			if c.Resources != nil {
				h.resources(c.Resources.Requests)
			}
		}
	}

	if s.Resources != nil || s.AllocatedResources != nil {
		h.resources(s.AllocatedResources)
		if s.Resources != nil {
			h.resources(s.Resources.Requests)
		}
	}

	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == v1.PodResizePending {
			h.string(string(c.Status))
			h.string(c.Reason)
		}
	}
}
