// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"slices"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Default applies, in place, the API server's defaults for a decoded pod (SetObjectDefaults_Pod).
// The API server does so before admission, so the rules see the defaults.
func Default(pod *v1.Pod) {
	containers := slices.Concat(rules.Pointers(pod.Spec.InitContainers), rules.Pointers(pod.Spec.Containers))
	for _, c := range containers {
		// Like upstream, do this before amounts are rounded.
		defaultRequests(&c.Resources)
		// The pod then uses the node's network, so a host port must equal the container port.
		if pod.Spec.HostNetwork {
			for i := range c.Ports {
				c.Ports[i].HostPort = cmp.Or(c.Ports[i].HostPort, c.Ports[i].ContainerPort)
			}
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

// defaultSpec sets the defaults of the pod's own fields.
func defaultSpec(spec *v1.PodSpec) {
	spec.DNSPolicy = cmp.Or(spec.DNSPolicy, v1.DNSClusterFirst)
	spec.RestartPolicy = cmp.Or(spec.RestartPolicy, v1.RestartPolicyAlways)

	spec.SecurityContext = cmp.Or(spec.SecurityContext, &v1.PodSecurityContext{})
	rules.SetDefault(&spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	// Like upstream, for pods but not for pod templates.
	if *spec.TerminationGracePeriodSeconds < 0 {
		spec.TerminationGracePeriodSeconds = new(int64(1))
	}

	rules.SetDefault(&spec.EnableServiceLinks, v1.DefaultEnableServiceLinks)
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

// roundUp rounds amounts up to whole thousandths, the finest unit stored by the API.
func roundUp(list v1.ResourceList) {
	for name, quantity := range list {
		if !quantity.RoundUp(-3) {
			list[name] = quantity
		}
	}
}

// defaultContainer sets the defaults common to all containers, including init and ephemeral ones.
func defaultContainer(c *v1.Container) {
	c.ImagePullPolicy = cmp.Or(c.ImagePullPolicy, pullPolicy(c.Image))
	c.TerminationMessagePath = cmp.Or(c.TerminationMessagePath, v1.TerminationMessagePathDefault)

	c.TerminationMessagePolicy = cmp.Or(c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for i := range c.Ports {
		c.Ports[i].Protocol = cmp.Or(c.Ports[i].Protocol, v1.ProtocolTCP)
	}

	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				rules.SetDefault(&from.FileKeyRef.Optional, false)
			}
		}
	}

	// Round only after defaultRequests has run, because it copies unrounded limits.
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
	for _, probe := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(probe)
	}

	if c.Lifecycle != nil {
		for _, handler := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if handler != nil {
				defaultHTTPGet(handler.HTTPGet)
			}
		}
	}
}

// pullPolicy returns Always for images that may change under the same name. These are images with
// the tag latest, explicit or implied, and without a digest. An unparsable name gets IfNotPresent,
// and the node reports the error.
func pullPolicy(image string) v1.PullPolicy {
	name, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return v1.PullIfNotPresent
	}
	if tagged, ok := reference.TagNameOnly(name).(reference.Tagged); ok && tagged.Tag() == "latest" {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

// defaultProbe sets the defaults of a probe's times and thresholds; it ignores a nil probe.
func defaultProbe(probe *v1.Probe) {
	if probe == nil {
		return
	}
	// InitialDelaySeconds is excluded, because zero is a valid value.
	for field, value := range map[*int32]int32{
		&probe.TimeoutSeconds: 1, &probe.PeriodSeconds: 10, &probe.SuccessThreshold: 1, &probe.FailureThreshold: 3,
	} {
		*field = cmp.Or(*field, value)
	}
	defaultHTTPGet(probe.HTTPGet)
	if probe.GRPC != nil {
		rules.SetDefault(&probe.GRPC.Service, "")
	}
}

// defaultHTTPGet sets the default path and scheme of an HTTP action, if present.
func defaultHTTPGet(get *v1.HTTPGetAction) {
	if get == nil {
		return
	}
	get.Path = cmp.Or(get.Path, "/")
	get.Scheme = cmp.Or(get.Scheme, v1.URISchemeHTTP)
}

// defaultFieldRef sets the default API version of the field path.
func defaultFieldRef(ref *v1.ObjectFieldSelector) {
	if ref != nil && ref.APIVersion == "" {
		ref.APIVersion = "v1"
	}
}

// fileMode is the default mode of files from the API: secrets, config maps, the pod's own fields.
const fileMode int32 = 0o644

// defaultVolume sets the defaults specific to the volume's kind. A volume without a kind is an
// emptyDir.
func defaultVolume(volume *v1.Volume) {
	if volume.VolumeSource == (v1.VolumeSource{}) {
		volume.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	// Use the same rule as for a container's image.
	if volume.Image != nil && volume.Image.PullPolicy == "" {
		volume.Image.PullPolicy = pullPolicy(volume.Image.Reference)
	}

	// The empty type is a valid type: it skips checks before the mount.
	if volume.HostPath != nil {
		rules.SetDefault(&volume.HostPath.Type, v1.HostPathUnset)
	}
	if volume.Secret != nil {
		rules.SetDefault(&volume.Secret.DefaultMode, fileMode)
	}

	if volume.ConfigMap != nil {
		rules.SetDefault(&volume.ConfigMap.DefaultMode, fileMode)
	}
	if volume.DownwardAPI != nil {
		rules.SetDefault(&volume.DownwardAPI.DefaultMode, fileMode)
		defaultItems(volume.DownwardAPI.Items)
	}

	if volume.Projected != nil {
		defaultProjected(volume.Projected)
	}
	if volume.Ephemeral != nil && volume.Ephemeral.VolumeClaimTemplate != nil {
		// The template becomes a PersistentVolumeClaim, and gets its defaults.
		claim := &volume.Ephemeral.VolumeClaimTemplate.Spec
		rules.SetDefault(&claim.VolumeMode, v1.PersistentVolumeFilesystem)
		roundUp(claim.Resources.Limits)
		roundUp(claim.Resources.Requests)
	}

	defaultOfOldKinds(volume)
}

// defaultProjected sets the default mode of the files and the default lifetime of tokens.
func defaultProjected(projected *v1.ProjectedVolumeSource) {
	const hour int64 = 3600
	rules.SetDefault(&projected.DefaultMode, fileMode)
	for i := range projected.Sources {
		source := &projected.Sources[i]
		if source.DownwardAPI != nil {
			defaultItems(source.DownwardAPI.Items)
		}
		if source.ServiceAccountToken != nil {
			rules.SetDefault(&source.ServiceAccountToken.ExpirationSeconds, hour)
		}
	}
}

// defaultItems sets the default API versions of the fields exposed as files.
func defaultItems(items []v1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}

// defaultOfOldKinds handles volumes now served by CSI drivers. The API retains their fields, and
// still sets their defaults.
func defaultOfOldKinds(volume *v1.Volume) {
	or := func(field *string, value string) {
		*field = cmp.Or(*field, value)
	}

	if volume.ISCSI != nil {
		or(&volume.ISCSI.ISCSIInterface, "default")
	}
	if volume.RBD != nil {
		or(&volume.RBD.RBDPool, "rbd")
		or(&volume.RBD.RadosUser, "admin")
		or(&volume.RBD.Keyring, "/etc/ceph/keyring")
	}

	if volume.ScaleIO != nil {
		or(&volume.ScaleIO.StorageMode, "ThinProvisioned")
		or(&volume.ScaleIO.FSType, "xfs")
	}

	if disk := volume.AzureDisk; disk != nil {
		rules.SetDefault(&disk.CachingMode, v1.AzureDataDiskCachingReadWrite)
		rules.SetDefault(&disk.FSType, "ext4")
		rules.SetDefault(&disk.ReadOnly, false)
		rules.SetDefault(&disk.Kind, v1.AzureSharedBlobDisk)
	}
}
