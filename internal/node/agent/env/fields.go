package env

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/fieldpath"
	kubectlresource "k8s.io/kubectl/pkg/util/resource"
)

// podField is what a fieldRef of an environment variable refers to.
func podField(pod *v1.Pod, ref *v1.ObjectFieldSelector, sources Sources) (string, error) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return "", fmt.Errorf("unsupported pod version: %s", ref.APIVersion)
	}
	switch ref.FieldPath {
	case "spec.nodeName", "spec.host": // the second is the name that API versions before v1 used
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		if len(sources.HostIPs) == 0 {
			return "", fmt.Errorf("the node has no address yet, so %s has no value", ref.FieldPath)
		}
		return sources.HostIPs[0], nil
	case "status.hostIPs":
		return strings.Join(sources.HostIPs, ","), nil
	case "status.podIP":
		if len(sources.PodIPs) == 0 {
			return "", nil
		}
		return sources.PodIPs[0], nil
	case "status.podIPs":
		return strings.Join(sources.PodIPs, ","), nil
	}
	return MetadataField(pod, ref.FieldPath)
}

// MetadataField is a field of the pod's metadata as the downward API shows it: all labels or
// annotations as lines of key="value", sorted by key; a single one, metadata.labels['app'], as its
// bare value.
func MetadataField(pod *v1.Pod, path string) (string, error) {
	return fieldpath.ExtractFieldPathAsString(pod, path)
}

// resourceField is what a resourceFieldRef of an environment variable refers to.
func resourceField(pod *v1.Pod, c *v1.Container, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	if resourcehelper.IsPodLevelLimitsSet(pod) {
		allocatable = allocatable.DeepCopy()
		for _, name := range defaulted {
			limit, set := pod.Spec.Resources.Limits[name]
			if _, known := allocatable[name]; known && set && !limit.IsZero() && resourcehelper.IsSupportedPodLevelResource(name) {
				allocatable[name] = limit
			}
		}
	}
	if ref.ContainerName != "" {
		return ResourceField(pod, ref.ContainerName, ref, allocatable)
	}
	return kubectlresource.ExtractContainerResourceValue(ref, withLimits(c, allocatable))
}

// ResourceField is a request or limit of the named container in units of the divisor, rounded up. A
// limit that is not set is the node's allocatable amount.
func ResourceField(pod *v1.Pod, container string, ref *v1.ResourceFieldSelector, allocatable v1.ResourceList) (string, error) {
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if c.Name == container {
			return kubectlresource.ExtractContainerResourceValue(ref, withLimits(&c, allocatable))
		}
	}
	return "", fmt.Errorf("container %s not found", container)
}

// defaulted are the resources whose limit is the node's if none is set. Huge pages are not among
// them: they are never overcommitted, so a container without a request has none.
var defaulted = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}

func withLimits(c *v1.Container, allocatable v1.ResourceList) *v1.Container {
	c = c.DeepCopy()
	for _, name := range defaulted {
		limit := c.Resources.Limits[name]
		available, known := allocatable[name]
		if !known || limit.Cmp(resource.Quantity{}) != 0 {
			continue
		}
		if c.Resources.Limits == nil {
			c.Resources.Limits = v1.ResourceList{}
		}
		c.Resources.Limits[name] = available.DeepCopy()
	}
	return c
}
