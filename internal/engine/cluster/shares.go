// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// shares lets the specs of classes share equal parts: texts such as topology keys, the requests of
// containers, lists of containers, and whole specs, such as the specs of jobs that differ only in
// their labels. It remembers only recently used values, and excludes classes of unusual size, so
// that it retains little data of deleted pods. Shared values are immutable.
type shares struct {
	alone       bool // serves a single class of unusual size, so containers need not be hashed
	texts       [512]string
	amounts     slots[v1.ResourceList]
	containers  slots[[]Container]
	tolerations slots[[]v1.Toleration]
	selectors   slots[map[string]string] // node selectors
	constraints slots[[]v1.TopologySpreadConstraint]
	demands     slots[*Demand]
	kinds       slots[*ControllerKind]
	scopes      slots[*TermScope] // each of one namespace
	shapes      slots[*Shape]
	specs       slots[*Spec]
}

// slots has one place for all keys that are equal modulo the number of places. The place holds the
// value added last.
type slots[T any] [128]struct {
	key   digest
	value T
}

// get returns the known value of the key if it is the same as the given value. Otherwise it
// remembers and returns the given value.
func (s *slots[T]) get(key digest, value T, same func(a, b T) bool) T {
	at := &s[key[0]%uint64(len(s))]
	if at.key != key || !same(at.value, value) {
		at.key, at.value = key, value
	}
	return at.value
}

// at returns the value of the key if it is remembered, or else the zero value.
func (s *slots[T]) at(key digest) (value T) {
	if at := &s[key[0]%uint64(len(s))]; at.key == key {
		value = at.value
	}
	return value
}

// shareText returns an equal text seen before, if it is still remembered: only the last of the
// texts with the same hash is remembered.
func (s *shares) shareText(t string) string {
	if t == "" {
		return ""
	}
	var h hasher
	h.addString(t)
	at := &s.texts[h.a%uint64(len(s.texts))]
	if *at != t {
		*at = t
	}
	return *at
}

// specOf reads the Spec of a pod. needs is the digest of the pod's needs, and own holds its labels.
func (s *shares) specOf(pod *v1.Pod, needs digest, own *rules.Labels) *Spec {
	from := &pod.Spec
	extras := s.extrasOf(pod)
	// Specs with these extras are rarely equal.
	common := len(extras.Volumes)+len(extras.ResourceClaims)+len(extras.Overhead) == 0 && extras.Resources == nil
	var key digest
	if common && !s.alone {
		h := hasher{needs[0], needs[1]}
		h.addNames(from.InitContainers)
		h.addNames(from.Containers)
		h.addGroup(from.SchedulingGroup)
		key = h.sum()
		if known := s.specs.at(key); known != nil {
			return known
		}
	}

	read := selectorReader{own: own, shared: s}
	spec := &Spec{Shape: s.shapeOf(from), Extras: extras, Containers: s.containersOf(from.Containers)}
	spec.Spread = s.spreadOf(from.TopologySpreadConstraints, &read)
	if from.Affinity != nil {
		spec.NodeAffinity = from.Affinity.NodeAffinity
	}
	spec.terms = s.termsOf(from.Affinity, pod.Namespace, &read)
	if common && !s.alone {
		s.specs.get(key, spec, sayAll[*Spec])
	}
	return spec
}

// shapeOf reads the part of a spec shared by many workloads.
func (s *shares) shapeOf(from *v1.PodSpec) *Shape {
	shape := &Shape{
		SchedulerName: s.shareText(from.SchedulerName), Priority: from.Priority, PriorityClassName: s.shareText(from.PriorityClassName),
		NodeSelector: s.nodeSelectorOf(from.NodeSelector), Tolerations: s.tolerationsOf(from.Tolerations),
		HostNetwork: from.HostNetwork, HostUsers: from.HostUsers, RuntimeClassName: from.RuntimeClassName,
	}
	if policy := from.PreemptionPolicy; policy != nil && *policy == v1.PreemptNever {
		shape.PreemptionPolicy = policy // every other policy is the default
	}
	if s.alone {
		return shape
	}

	h := hasher{}
	h.addString(shape.SchedulerName)
	h.optionalInt32(shape.Priority)
	h.addString(shape.PriorityClassName)
	h.addBool(shape.PreemptionPolicy != nil)
	h.stringMap(shape.NodeSelector)
	h.addTolerations(shape.Tolerations)
	h.addBool(shape.HostNetwork)
	h.addBool(shape.HostUsers != nil)
	h.addBool(shape.HostUsers != nil && *shape.HostUsers)
	h.optionalString(shape.RuntimeClassName)
	return s.shapes.get(h.sum(), shape, func(a, b *Shape) bool { return slices.EqualFunc(a.Tolerations, b.Tolerations, sameSeconds) })
}

// extrasOf reads the fields absent from most specs.
func (s *shares) extrasOf(pod *v1.Pod) *Extras {
	from := &pod.Spec
	extras := Extras{
		InitContainers: s.containersOf(from.InitContainers), Overhead: from.Overhead, Resources: from.Resources,
		Volumes: thatMatter(from.Volumes), ResourceClaims: from.ResourceClaims, SchedulingGates: from.SchedulingGates,
		SchedulingGroup: from.SchedulingGroup,
	}
	if len(extras.InitContainers)+len(extras.Overhead)+len(extras.Volumes)+len(extras.ResourceClaims)+len(extras.SchedulingGates) == 0 &&
		extras.Resources == nil && extras.SchedulingGroup == nil {
		return noExtras
	}
	if len(from.ResourceClaims) > 0 {
		extras.Status = new(pod.Status) // a pointer into the pod would retain the whole pod
	}
	return &extras
}

// spreadOf reads spread constraints and their selectors. Constraints stored without selectors are
// shared.
func (s *shares) spreadOf(from []v1.TopologySpreadConstraint, read *selectorReader) *Spread {
	if len(from) == 0 {
		return noSpread
	}
	list, selectors, whole := slices.Clone(from), make([]*rules.Selector, len(from)), true
	for i := range list {
		c := &list[i]
		c.TopologyKey, c.WhenUnsatisfiable = s.shareText(c.TopologyKey),
			v1.UnsatisfiableConstraintAction(s.shareText(string(c.WhenUnsatisfiable)))
		var err error
		if selectors[i], err = read.readOne(c.LabelSelector); err == nil && (c.LabelSelector == nil || selectsByLabels(c.LabelSelector)) {
			c.LabelSelector = nil
		} else {
			whole = false
		}
	}
	if !whole || s.alone {
		return &Spread{list, selectors}
	}

	h := hasher{}
	h.addSpread(list)
	for i := range list { // addSpread does not distinguish an absent policy from the default
		h.addBool(list[i].NodeAffinityPolicy != nil)
		h.addBool(list[i].NodeTaintsPolicy != nil)
	}
	return &Spread{s.constraints.get(h.sum(), list, sayAll[[]v1.TopologySpreadConstraint]), selectors}
}

// demandOf returns an equal demand seen before, if it is still remembered.
func (s *shares) demandOf(demand Demand) *Demand {
	if s.alone || demand.Ports != nil || len(demand.Requests.Scalars) > 0 {
		return &demand
	}
	h := hasher{}
	for _, amount := range [...]int64{
		demand.Requests.MilliCPU, demand.Requests.Memory, demand.Requests.EphemeralStorage, demand.NonZeroCPU, demand.NonZeroMemory,
		int64(demand.Static[0]), int64(demand.Static[1]),
	} {
		h.addInt(amount)
	}
	key := h.sum()
	if known := s.demands.at(key); known != nil {
		return known
	}
	return s.demands.get(key, &demand, sayAll[*Demand])
}

// addNames hashes the names of containers, most of which addContainers omits.
func (h *hasher) addNames(list []v1.Container) {
	h.addWord(uint64(len(list)))
	for i := range list {
		h.addString(list[i].Name)
	}
}

// thatMatter returns the volumes relevant to placement.
func thatMatter(volumes []v1.Volume) (kept []v1.Volume) {
	for i := range volumes {
		if volumeMatters(&volumes[i]) {
			kept = append(kept, volumes[i])
		}
	}
	return slices.Clip(kept)
}

func (s *shares) containersOf(list []v1.Container) []Container {
	if len(list) == 0 {
		return nil
	}
	var h hasher
	if !s.alone {
		h.addContainers(list)
	}

	kept := make([]Container, len(list))
	for i := range list {
		from := &list[i]
		h.addString(from.Name)
		kept[i] = Container{
			Name: s.shareText(from.Name), Image: s.shareText(from.Image), Requests: s.amountsOf(from.Resources.Requests),
			ContainerExtras: containerExtrasOf(from),
		}
	}
	if s.alone {
		return kept
	}
	return s.containers.get(h.sum(), kept, sayAll[[]Container])
}

// containerExtrasOf reads the fields absent from most containers.
func containerExtrasOf(from *v1.Container) *ContainerExtras {
	extras := ContainerExtras{Ports: hostPorts(from.Ports), RestartPolicy: from.RestartPolicy, RestartPolicyRules: from.RestartPolicyRules}
	if len(extras.Ports)+len(extras.RestartPolicyRules) == 0 && extras.RestartPolicy == nil {
		return noContainerExtras
	}
	return &extras
}

// hostPorts returns the part of a container's ports relevant to decisions: the host ports.
func hostPorts(list []v1.ContainerPort) (kept []v1.ContainerPort) {
	for i := range list {
		if p := &list[i]; p.HostPort > 0 {
			kept = append(kept, v1.ContainerPort{HostIP: p.HostIP, Protocol: p.Protocol, HostPort: p.HostPort})
		}
	}
	return slices.Clip(kept)
}

func (s *shares) amountsOf(list v1.ResourceList) v1.ResourceList {
	if len(list) == 0 || s.alone {
		return list
	}
	var h hasher
	h.addResources(list)
	return s.amounts.get(h.sum(), list, sayAll[v1.ResourceList])
}

func (s *shares) tolerationsOf(list []v1.Toleration) []v1.Toleration {
	if len(list) == 0 {
		return list
	}
	var h hasher
	h.addTolerations(list)
	return s.tolerations.get(h.sum(), list, func(a, b []v1.Toleration) bool { return slices.EqualFunc(a, b, sameSeconds) })
}

// sameSeconds compares the field omitted from the digest of tolerations.
func sameSeconds(a, b v1.Toleration) bool {
	return ptr.Equal(a.TolerationSeconds, b.TolerationSeconds)
}

func (s *shares) nodeSelectorOf(selector map[string]string) map[string]string {
	if len(selector) == 0 {
		return selector
	}
	var h hasher
	h.stringMap(selector)
	return s.selectors.get(h.sum(), selector, sayAll[map[string]string])
}

// sayAll is the comparison for values completely described by their digests.
func sayAll[T any](_, _ T) bool { return true }
