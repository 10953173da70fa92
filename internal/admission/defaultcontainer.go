// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
)

// defaultContainer sets the defaults common to all containers, including init and ephemeral ones.
func defaultContainer(c *v1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicy(c.Image)
	}
	c.TerminationMessagePath = cmp.Or(c.TerminationMessagePath, v1.TerminationMessagePathDefault)

	c.TerminationMessagePolicy = cmp.Or(c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for i := range c.Ports {
		c.Ports[i].Protocol = cmp.Or(c.Ports[i].Protocol, v1.ProtocolTCP)
	}

	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				setDefault(&from.FileKeyRef.Optional, false)
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
		setDefault(&probe.GRPC.Service, "")
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

// setDefault sets a nil field. A pointer to a zero value counts as set.
func setDefault[T any](field **T, value T) {
	*field = cmp.Or(*field, &value)
}
