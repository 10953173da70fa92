// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (h *hostile) setAmounts(p *v1.Pod) {
	list := v1.ResourceList{}
	for _, name := range []v1.ResourceName{"cpu", "memory", "ephemeral-storage", "example.com/odd"} {
		if h.withChance(60) {
			list[name] = h.randomAmount()
		}
	}
	p.Spec.Containers[0].Resources.Requests = list
	if odd, ok := list["example.com/odd"]; ok {
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"example.com/odd": odd}
	}
}

func (h *hostile) chosenNode(p *v1.Pod) {
	p.Spec.NodeName = oneOf(h, fmt.Sprint("node-", 1+h.rng.IntN(h.nodes)), "nowhere", "node-1")
}

// randomKey returns a label key used by nodes, or one of very many unused keys.
func (h *hostile) randomKey() string {
	return oneOf(h, v1.LabelHostname, v1.LabelTopologyZone, v1.LabelOSStable, fmt.Sprint("key-", h.rng.IntN(1000)),
		fmt.Sprint("x/", h.rng.IntN(1<<30)))
}

func (h *hostile) randomSelector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	switch h.rng.IntN(4) {
	case 0:
	case 1:
		s.MatchLabels = map[string]string{"app": oneOf(h, "a", "b", "witness")}
	case 2:
		var values []string
		for i := range h.randomCount() {
			values = append(values, fmt.Sprint(i))
		}
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "n",
			Operator: oneOf(h, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: values}}
	case 3:
		s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: h.randomKey(),
			Operator: oneOf(h, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}}
	}

	return s
}

func (h *hostile) randomTerm() v1.PodAffinityTerm {
	return v1.PodAffinityTerm{TopologyKey: h.randomKey(), LabelSelector: h.randomSelector()}
}

func affinityOf(p *v1.Pod) *v1.Affinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &v1.Affinity{}
	}
	return p.Spec.Affinity
}

func (h *hostile) preferredTerms(p *v1.Pod) {
	var terms []v1.WeightedPodAffinityTerm
	for range h.randomCount() {
		terms = append(terms, v1.WeightedPodAffinityTerm{Weight: 1 + h.rng.Int32N(100), PodAffinityTerm: h.randomTerm()})
	}
	if h.withChance(50) {
		affinityOf(p).PodAffinity = &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}
	} else {
		affinityOf(p).PodAntiAffinity = &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}
	}
}

func (h *hostile) requiredTerms(p *v1.Pod) {
	var terms []v1.PodAffinityTerm
	for range min(100, h.randomCount()) {
		terms = append(terms, h.randomTerm())
	}
	if h.withChance(50) {
		affinityOf(p).PodAffinity = &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	} else {
		affinityOf(p).PodAntiAffinity = &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	}
}

func (h *hostile) addSpreads(p *v1.Pod) {
	for range min(60, h.randomCount()) {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, v1.TopologySpreadConstraint{
			MaxSkew: oneOf[int32](h, 1, 2, 1<<31-1), TopologyKey: h.randomKey(), LabelSelector: h.randomSelector(),
			WhenUnsatisfiable: oneOf(h, v1.DoNotSchedule, v1.ScheduleAnyway),
		})
	}
}

func (h *hostile) nodeTerms(p *v1.Pod) {
	var terms []v1.NodeSelectorTerm
	for range min(400, h.randomCount()) {
		var values []string
		for range min(100, h.randomCount()) {
			values = append(values, fmt.Sprint("node-", h.rng.IntN(2*h.nodes)))
		}
		terms = append(terms, v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: h.randomKey(),
			Operator: oneOf(h, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn), Values: values}}})
	}
	required := &v1.NodeSelector{NodeSelectorTerms: terms}
	affinityOf(p).NodeAffinity = &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}
}

func (h *hostile) addTolerations(p *v1.Pod) {
	for i := range h.randomCount() {
		p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: fmt.Sprint("t-", i),
			Operator: v1.TolerationOpExists, TolerationSeconds: pointerTo(oneOf[int64](h, -1<<63, 0, 1<<63-1)),
			Effect: v1.TaintEffectNoExecute})
	}
}

func (h *hostile) manyLabels(p *v1.Pod) {
	for i := range h.randomCount() {
		p.Labels[fmt.Sprint("l-", i)] = fmt.Sprint(h.rng.IntN(1 << 30))
	}
}

func (h *hostile) addAnnotations(p *v1.Pod) {
	p.Annotations["kubernetes.io/config.source"] = oneOf(h, "file", "http", "api")
	p.Annotations["kubernetes.io/config.mirror"] = "mirror"
	p.Annotations["berth.dev/terminate-after"] = oneOf(h, "-5s", "9999999h", "0s", "never", "1ns")
	p.Annotations["scheduler.alpha.kubernetes.io/critical-pod"] = ""
	p.Annotations["large"] = strings.Repeat("x", oneOf(h, 10, 1000, 200_000))
	for key := range p.Annotations {
		if h.withChance(40) {
			delete(p.Annotations, key)
		}
	}
}

func (h *hostile) addGates(p *v1.Pod) {
	for i := range min(100, h.randomCount()) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, v1.PodSchedulingGate{Name: fmt.Sprint("gate-", i)})
	}
}

func (h *hostile) addVolumes(p *v1.Pod) {
	for i := range min(50, h.randomCount()) {
		claim := &v1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("claim-", h.rng.IntN(30))}
		source := v1.VolumeSource{PersistentVolumeClaim: claim}
		if h.withChance(20) {
			source = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
				VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: h.volumeClaim()},
			}}
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: fmt.Sprint("v-", i), VolumeSource: source})
	}
}

func (h *hostile) addDevices(p *v1.Pod) {
	for i := range min(20, h.randomCount()) {
		name := fmt.Sprint("claim-", h.rng.IntN(30))
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: fmt.Sprint("d-", i), ResourceClaimName: &name})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, v1.ResourceClaim{Name: fmt.Sprint("d-", i)})
	}
}

func (h *hostile) addPorts(p *v1.Pod) {
	for i := range min(100, h.randomCount()) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports,
			v1.ContainerPort{ContainerPort: int32(1 + i), HostPort: int32(1 + h.rng.IntN(65535))})
	}
}

func (h *hostile) addContainers(p *v1.Pod) {
	for i := range min(60, h.randomCount()) {
		c := v1.Container{Name: fmt.Sprint("i-", i), Image: "none",
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"memory": h.randomAmount()}}}
		if h.withChance(30) {
			c.RestartPolicy = pointerTo(v1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
}

func (h *hostile) setPriority(p *v1.Pod) {
	p.Spec.PriorityClassName = oneOf(h, "tenant-high", "tenant-low", "system-node-critical", "made-up")
}

func (h *hostile) setOthers(p *v1.Pod) {
	switch h.rng.IntN(4) {
	case 0:
		p.Spec.SchedulerName = oneOf(h, "nobody", "default-scheduler")
	case 1:
		p.Spec.NodeSelector = map[string]string{h.randomKey(): "x"}
	case 2:
		p.Finalizers = []string{"example.com/never"}
	case 3:
		p.Spec.ActiveDeadlineSeconds = pointerTo(oneOf[int64](h, 1, 1<<31-1))
	}
}
