package cluster

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Spec is what the specs of the pods of a class have in common: the fields that decisions may
// depend on, and the names of containers. Everything else, such as environments and mounts, is the
// pods' own. It is much smaller than a v1.PodSpec, since there may be as many classes as pods: what
// most workloads have in common stands in a Shape, what few have in Extras and Spread. None is nil,
// nor is one changed.
type Spec struct {
	*Shape
	*Extras
	*Spread
	NodeAffinity *v1.NodeAffinity
	Containers   []Container

	terms *Terms // those of the class
}

// Shape is what the specs of many workloads have in common.
type Shape struct {
	SchedulerName    string
	Priority         *int32
	PreemptionPolicy *v1.PreemptionPolicy // nil, or PreemptNever
	NodeSelector     map[string]string
	Tolerations      []v1.Toleration
	HostNetwork      bool
	HostUsers        *bool
	RuntimeClassName *string
}

// Spread is how pods are to be spread.
type Spread struct {
	// TopologySpreadConstraints are without their selectors, except for those that SpreadSelectors
	// cannot give back. SpreadSelectors are nil for those that cannot be parsed.
	TopologySpreadConstraints []v1.TopologySpreadConstraint
	SpreadSelectors           []*rules.Selector
}

var noSpread = &Spread{}

// Extras are what the specs of most pods do not have.
type Extras struct {
	InitContainers  []Container
	Overhead        v1.ResourceList
	Resources       *v1.ResourceRequirements
	Volumes         []v1.Volume // those that not every node can provide
	ResourceClaims  []v1.PodResourceClaim
	SchedulingGates []v1.PodSchedulingGate
	SchedulingGroup *v1.PodSchedulingGroup
	// Status is kept only where decisions depend on it: for pods with device claims, each of which
	// is a class of its own.
	Status *v1.PodStatus
}

var noExtras = &Extras{}

// Container is the same of a container. Limits, probes, commands and mounts are left
// out. Its ContainerExtras are not nil.
type Container struct {
	Name, Image string
	Requests    v1.ResourceList
	*ContainerExtras
}

// ContainerExtras are what most containers do not have.
type ContainerExtras struct {
	Ports              []v1.ContainerPort // host ports only
	RestartPolicy      *v1.ContainerRestartPolicy
	RestartPolicyRules []v1.ContainerRestartRule
}

var noContainerExtras = &ContainerExtras{}

// Affinity returns the affinity as the API has it.
func (s *Spec) Affinity() *v1.Affinity { return s.terms.affinity(s.NodeAffinity) }

// Object returns the spec as that of an API object, for libraries that expect one. It shares its
// contents: do not change them. Containers are allocated anew with each call; callers that need it
// often keep it.
func (s *Spec) Object() v1.PodSpec {
	return v1.PodSpec{
		SchedulerName: s.SchedulerName, Priority: s.Priority, PreemptionPolicy: s.PreemptionPolicy, NodeSelector: s.NodeSelector,
		Tolerations: s.Tolerations, Affinity: s.Affinity(), TopologySpreadConstraints: s.constraints(),
		InitContainers: containerObjects(s.InitContainers), Containers: containerObjects(s.Containers),
		Overhead: s.Overhead, Resources: s.Resources,
		Volumes: s.Volumes, ResourceClaims: s.ResourceClaims, SchedulingGates: s.SchedulingGates, SchedulingGroup: s.SchedulingGroup,
		HostNetwork: s.HostNetwork, HostUsers: s.HostUsers, RuntimeClassName: s.RuntimeClassName,
	}
}

// constraints returns the spread constraints as the API has them.
func (s *Spec) constraints() []v1.TopologySpreadConstraint {
	list := slices.Clone(s.TopologySpreadConstraints)
	for i := range list {
		if list[i].LabelSelector == nil && s.SpreadSelectors[i] != nil {
			list[i].LabelSelector = s.SpreadSelectors[i].OfLabels()
		}
	}
	return list
}

// containerObjects returns containers as those of an API object.
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
