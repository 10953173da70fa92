// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Spec is the part of a spec shared by the pods of a class: the fields that may affect decisions,
// and the names of containers. Everything else, such as environments and mounts, is omitted. There
// may be as many classes as pods, so a Spec is kept much smaller than a v1.PodSpec: the part shared
// by many workloads is in a Shape, and rare fields are in Extras and Spread. Shape, Extras and
// Spread are immutable and never nil.
type Spec struct {
	*Shape
	*Extras
	*Spread
	NodeAffinity *v1.NodeAffinity
	Containers   []Container

	terms *Terms // terms of the class
}

// Shape is the part of specs shared by many workloads.
type Shape struct {
	SchedulerName     string
	Priority          *int32
	PriorityClassName string
	PreemptionPolicy  *v1.PreemptionPolicy // nil, or PreemptNever
	NodeSelector      map[string]string
	Tolerations       []v1.Toleration
	HostNetwork       bool
	HostUsers         *bool
	RuntimeClassName  *string
}

// NeverPreempts reports whether the preemptionPolicy is Never.
func (s *Shape) NeverPreempts() bool {
	return s.PreemptionPolicy != nil && *s.PreemptionPolicy == v1.PreemptNever
}

// Spread holds the spread constraints.
type Spread struct {
	// The LabelSelector of a constraint is nil if it can be restored from SpreadSelectors. The
	// entry of SpreadSelectors is nil for an invalid selector.
	TopologySpreadConstraints []v1.TopologySpreadConstraint
	SpreadSelectors           []*rules.Selector
}

var noSpread = &Spread{}

// Extras holds the fields absent from the specs of most pods.
type Extras struct {
	InitContainers  []Container
	Overhead        v1.ResourceList
	Resources       *v1.ResourceRequirements
	Volumes         []v1.Volume // volumes that not every node can provide
	ResourceClaims  []v1.PodResourceClaim
	SchedulingGates []v1.PodSchedulingGate
	SchedulingGroup *v1.PodSchedulingGroup
	// Status is kept only if it affects decisions: for pods with device claims. Each such pod has a
	// class of its own.
	Status *v1.PodStatus
}

var noExtras = &Extras{}

// Container is the part of a container shared by the pods of a class. It omits limits, probes,
// commands and mounts. Its ContainerExtras are not nil.
type Container struct {
	Name, Image string
	Requests    v1.ResourceList
	*ContainerExtras
}

// ContainerExtras holds the fields absent from most containers.
type ContainerExtras struct {
	Ports              []v1.ContainerPort // host ports only
	RestartPolicy      *v1.ContainerRestartPolicy
	RestartPolicyRules []v1.ContainerRestartRule
}

var noContainerExtras = &ContainerExtras{}

// Affinity returns the affinity in API form.
func (s *Spec) Affinity() *v1.Affinity { return s.terms.affinity(s.NodeAffinity) }

// Object returns the spec in API form, for libraries that expect it. The result shares its contents
// with s and must not be modified. Each call allocates new containers; frequent callers should keep
// the result.
func (s *Spec) Object() v1.PodSpec {
	return v1.PodSpec{
		SchedulerName: s.SchedulerName, Priority: s.Priority, PriorityClassName: s.PriorityClassName,
		PreemptionPolicy: s.PreemptionPolicy, NodeSelector: s.NodeSelector,
		Tolerations: s.Tolerations, Affinity: s.Affinity(), TopologySpreadConstraints: s.constraints(),
		InitContainers: containerObjects(s.InitContainers), Containers: containerObjects(s.Containers),
		Overhead: s.Overhead, Resources: s.Resources,
		Volumes: s.Volumes, ResourceClaims: s.ResourceClaims, SchedulingGates: s.SchedulingGates, SchedulingGroup: s.SchedulingGroup,
		HostNetwork: s.HostNetwork, HostUsers: s.HostUsers, RuntimeClassName: s.RuntimeClassName,
	}
}

// constraints returns the spread constraints in API form.
func (s *Spec) constraints() []v1.TopologySpreadConstraint {
	list := slices.Clone(s.TopologySpreadConstraints)
	for i := range list {
		if list[i].LabelSelector == nil && s.SpreadSelectors[i] != nil {
			list[i].LabelSelector = s.SpreadSelectors[i].OfLabels()
		}
	}
	return list
}

// containerObjects returns containers in API form.
func containerObjects(list []Container) []v1.Container {
	if len(list) == 0 {
		return nil
	}
	objects := make([]v1.Container, len(list))
	for i := range list {
		c := &list[i]
		objects[i] = v1.Container{
			Name: c.Name, Image: c.Image, Ports: c.Ports, RestartPolicy: c.RestartPolicy, RestartPolicyRules: c.RestartPolicyRules,
			Resources: v1.ResourceRequirements{Requests: c.Requests},
		}
	}
	return objects
}
