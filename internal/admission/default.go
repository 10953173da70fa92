// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Default applies, in place, the API server's defaults for a decoded pod (SetObjectDefaults_Pod).
// The API server does so before admission, so the rules see the defaults.
func Default(pod *v1.Pod) {
	containers := slices.Concat(toPointers(pod.Spec.InitContainers), toPointers(pod.Spec.Containers))
	for _, c := range containers {
		// Like upstream, do this before amounts are rounded.
		defaultRequests(&c.Resources)
		// The pod then uses the node's network, so a host port must equal the container port.
		if pod.Spec.HostNetwork {
			defaultHostPorts(c.Ports)
		}
	}

	// Pod-level resources are only rounded here; DefaultPodResources adds the missing ones.
	if pod.Spec.Resources != nil {
		roundUp(pod.Spec.Resources.Limits)
		roundUp(pod.Spec.Resources.Requests)
	}

	// The above does not apply to ephemeral containers: they only have defaults for their own
	// fields, and neither requests nor host ports.
	for i := range pod.Spec.EphemeralContainers {
		containers = append(containers, (*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for _, c := range containers {
		defaultContainer(c)
	}

	for i := range pod.Spec.Volumes {
		defaultVolume(&pod.Spec.Volumes[i])
	}
	roundUp(pod.Spec.Overhead)
	defaultSpec(&pod.Spec)
}

// toPointers returns pointers into the list.
func toPointers[T any](list []T) []*T {
	result := make([]*T, len(list))
	for i := range list {
		result[i] = &list[i]
	}
	return result
}

// defaultSpec sets the defaults of the pod's own fields.
func defaultSpec(spec *v1.PodSpec) {
	spec.DNSPolicy = cmp.Or(spec.DNSPolicy, v1.DNSClusterFirst)
	spec.RestartPolicy = cmp.Or(spec.RestartPolicy, v1.RestartPolicyAlways)

	if spec.SecurityContext == nil {
		spec.SecurityContext = &v1.PodSecurityContext{}
	}
	setDefault(&spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	// Like upstream, for pods but not for pod templates.
	if *spec.TerminationGracePeriodSeconds < 0 {
		spec.TerminationGracePeriodSeconds = new(int64(1))
	}

	setDefault(&spec.EnableServiceLinks, v1.DefaultEnableServiceLinks)
	spec.SchedulerName = cmp.Or(spec.SchedulerName, v1.DefaultSchedulerName)

	// Old clients use the deprecated name of the account; both fields must agree.
	spec.ServiceAccountName = cmp.Or(spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
}

// defaultRequests sets missing requests to the limits.
func defaultRequests(r *v1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; set {
			continue
		}
		if r.Requests == nil {
			r.Requests = v1.ResourceList{}
		}
		r.Requests[name] = limit.DeepCopy()
	}
}

// defaultHostPorts sets missing host ports to the container ports.
func defaultHostPorts(ports []v1.ContainerPort) {
	for i := range ports {
		ports[i].HostPort = cmp.Or(ports[i].HostPort, ports[i].ContainerPort)
	}
}

// roundUp rounds amounts up to whole thousandths, the finest unit stored by the API.
func roundUp(list v1.ResourceList) {
	for name, quantity := range list {
		if !quantity.RoundUp(-3) {
			list[name] = quantity
		}
	}
}
