package admission

import (
	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
)

// defaultContainer fills in what every container has, init and ephemeral ones too.
func defaultContainer(c *v1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicy(c.Image)
	}
	if c.TerminationMessagePath == "" {
		c.TerminationMessagePath = v1.TerminationMessagePathDefault
	}

	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = v1.TerminationMessageReadFile
	}
	for i := range c.Ports {
		if c.Ports[i].Protocol == "" {
			c.Ports[i].Protocol = v1.ProtocolTCP
		}
	}

	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				setDefault(&from.FileKeyRef.Optional, false)
			}
		}
	}

	// After defaultRequests, which copies limits as they were written.
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

// pullPolicy is Always for what may change under its name: the tag latest, also where it is
// implied, and not with a digest. A name that cannot be read is left to the node.
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

// defaultProbe fills in the times of a probe, in seconds, if there is one.
func defaultProbe(probe *v1.Probe) {
	if probe == nil {
		return
	}
	// InitialDelaySeconds is left out: zero is a value there.
	for field, value := range map[*int32]int32{
		&probe.TimeoutSeconds: 1, &probe.PeriodSeconds: 10, &probe.SuccessThreshold: 1, &probe.FailureThreshold: 3,
	} {
		if *field == 0 {
			*field = value
		}
	}
	defaultHTTPGet(probe.HTTPGet)
	if probe.GRPC != nil {
		setDefault(&probe.GRPC.Service, "")
	}
}

// defaultHTTPGet fills in path and scheme, if there is such an action.
func defaultHTTPGet(get *v1.HTTPGetAction) {
	if get == nil {
		return
	}
	if get.Path == "" {
		get.Path = "/"
	}
	if get.Scheme == "" {
		get.Scheme = v1.URISchemeHTTP
	}
}

// defaultFieldRef fills in the version of the API that the path is of.
func defaultFieldRef(ref *v1.ObjectFieldSelector) {
	if ref != nil && ref.APIVersion == "" {
		ref.APIVersion = "v1"
	}
}

// setDefault sets a field that is not set. A pointer to a zero value is set.
func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
