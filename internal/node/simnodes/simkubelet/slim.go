// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Slim removes the parts of a pod that a simulated kubelet never reads, so that 150,000 pods fit
// into memory. It modifies its argument, and keeps the inputs of admission, scripts and statuses.
// The object must never be written back as a whole: the fleet writes patches only.
func Slim(pod *v1.Pod) *v1.Pod {
	meta := &pod.ObjectMeta
	meta.ManagedFields = nil
	meta.GenerateName = ""
	// The kubelet's admission examines this label; see package admit.
	meta.Labels = filterMap(meta.Labels, func(k string) bool { return k == v1.LabelOSStable })
	meta.Annotations = filterMap(meta.Annotations, func(k string) bool { return strings.HasPrefix(k, prefix) })
	// Only a Job's pod behaves differently because of its owner.
	if owner := metav1.GetControllerOfNoCopy(pod); owner == nil || owner.Kind != "Job" {
		meta.OwnerReferences = nil
	}

	spec := &pod.Spec
	spec.Volumes, spec.ImagePullSecrets, spec.TopologySpreadConstraints = nil, nil, nil
	spec.SecurityContext, spec.DNSConfig, spec.HostAliases = nil, nil, nil
	// Required node affinity is checked again at admission.
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
		spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}}
	} else {
		spec.Affinity = nil
	}

	for i := range spec.InitContainers {
		slimContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		slimContainer(&spec.Containers[i])
	}

	for i := range spec.EphemeralContainers {
		slimContainer((*v1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return pod
}

// slimContainer removes unused parts of a container. It keeps the command line if endingOf
// understands it.
func slimContainer(c *v1.Container) {
	// Command lines can be long scripts.
	if _, known := endingOf(c); !known {
		c.Command, c.Args = nil, nil
	}
	c.Env, c.EnvFrom = nil, nil
	c.VolumeMounts, c.VolumeDevices, c.SecurityContext, c.LivenessProbe = nil, nil, nil, nil
	if c.Lifecycle != nil && c.Lifecycle.PreStop == nil {
		c.Lifecycle = nil
	}

	// Only host ports can conflict.
	c.Ports = slices.DeleteFunc(c.Ports, func(p v1.ContainerPort) bool { return p.HostPort <= 0 })
	if len(c.Ports) == 0 {
		c.Ports = nil
	}
}

// filterMap returns a map of the entries selected by keep, or nil if there are none. It does not
// change m.
func filterMap(m map[string]string, keep func(string) bool) map[string]string {
	var kept map[string]string
	for k, v := range m {
		if keep(k) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[k] = v
		}
	}
	return kept
}
