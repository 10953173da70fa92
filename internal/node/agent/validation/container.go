package validation

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containers validates containers of all kinds: their names are unique, and so are the host ports
// of those that run at the same time.
func containers(s *v1.PodSpec, volumes map[string]bool, at *field.Path) (errs field.ErrorList) {
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(at.Child("containers"), ""))
	}
	if len(s.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(at.Child("ephemeralContainers"), "cannot be set on create"))
	}
	v := visitor{spec: s, volumes: volumes, names: map[string]bool{}}
	ports := map[hostPort]bool{}
	for i := range s.Containers {
		c, here := &s.Containers[i], at.Child("containers").Index(i)
		errs = append(errs, v.container(c, here)...)
		errs = append(errs, v.runs(c, here)...)
		errs = append(errs, hostPorts(c, ports, here)...)
		if c.RestartPolicy == nil && len(c.RestartPolicyRules) > 0 {
			errs = append(errs, field.Required(here.Child("restartPolicy"), "must be set with restartPolicyRules"))
		}
	}
	for i := range s.InitContainers {
		c, here := &s.InitContainers[i], at.Child("initContainers").Index(i)
		errs = append(errs, v.container(c, here)...)
		errs = append(errs, hostPorts(c, map[hostPort]bool{}, here)...) // they run one by one
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			errs = append(errs, v.runs(c, here)...)
			continue
		}
		for name, set := range map[string]bool{
			"lifecycle": c.Lifecycle != nil, "livenessProbe": c.LivenessProbe != nil, "readinessProbe": c.ReadinessProbe != nil, "startupProbe": c.StartupProbe != nil,
		} {
			if set {
				errs = append(errs, field.Forbidden(here.Child(name), "may not be set for init containers without restartPolicy=Always"))
			}
		}
	}
	return errs
}

type visitor struct {
	spec    *v1.PodSpec
	volumes map[string]bool
	names   map[string]bool
}

func (v visitor) container(c *v1.Container, at *field.Path) (errs field.ErrorList) {
	switch {
	case c.Name == "":
		errs = append(errs, field.Required(at.Child("name"), ""))
	case v.names[c.Name]:
		errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
	default:
		errs = append(errs, texts(at.Child("name"), c.Name, utilvalidation.IsDNS1123Label(c.Name))...)
	}
	v.names[c.Name] = true
	if c.Image == "" {
		errs = append(errs, field.Required(at.Child("image"), ""))
	}
	errs = append(errs, oneOf(at.Child("imagePullPolicy"), c.ImagePullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
	errs = append(errs, oneOf(at.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
		v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError)...)
	if c.RestartPolicy != nil {
		errs = append(errs, oneOf(at.Child("restartPolicy"), *c.RestartPolicy, v1.ContainerRestartPolicyAlways,
			v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)...)
	}
	errs = append(errs, ports(c.Ports, at.Child("ports"))...)
	errs = append(errs, environment(c, at)...)
	errs = append(errs, mounts(c, v.volumes, at.Child("volumeMounts"))...)
	errs = append(errs, amounts(c.Resources, at.Child("resources"))...)
	return append(errs, containerSecurity(c.SecurityContext, at.Child("securityContext"))...)
}

func ports(list []v1.ContainerPort, at *field.Path) (errs field.ErrorList) {
	names := map[string]bool{}
	for i, p := range list {
		here := at.Index(i)
		if p.Name != "" {
			errs = append(errs, texts(here.Child("name"), p.Name, utilvalidation.IsValidPortName(p.Name))...)
			if names[p.Name] {
				errs = append(errs, field.Duplicate(here.Child("name"), p.Name))
			}
			names[p.Name] = true
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(here.Child("containerPort"), ""))
		} else {
			errs = append(errs, texts(here.Child("containerPort"), p.ContainerPort, utilvalidation.IsValidPortNum(int(p.ContainerPort)))...)
		}
		if p.HostPort != 0 {
			errs = append(errs, texts(here.Child("hostPort"), p.HostPort, utilvalidation.IsValidPortNum(int(p.HostPort)))...)
		}
		errs = append(errs, oneOf(here.Child("protocol"), p.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)...)
	}
	return errs
}

type hostPort struct {
	ip       string
	protocol v1.Protocol
	port     int32
}

func hostPorts(c *v1.Container, taken map[hostPort]bool, at *field.Path) (errs field.ErrorList) {
	for i, p := range c.Ports {
		if p.HostPort == 0 {
			continue
		}
		port := hostPort{p.HostIP, p.Protocol, p.HostPort}
		if taken[port] {
			errs = append(errs, field.Duplicate(at.Child("ports").Index(i).Child("hostPort"), p.HostPort))
		}
		taken[port] = true
	}
	return errs
}

func environment(c *v1.Container, at *field.Path) (errs field.ErrorList) {
	for i, e := range c.Env {
		here := at.Child("env").Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(here.Child("name"), ""))
		} else {
			errs = append(errs, texts(here.Child("name"), e.Name, utilvalidation.IsRelaxedEnvVarName(e.Name))...)
		}
		if e.ValueFrom == nil {
			continue
		}
		n := 0
		for _, set := range []bool{e.ValueFrom.FieldRef != nil, e.ValueFrom.ResourceFieldRef != nil, e.ValueFrom.ConfigMapKeyRef != nil,
			e.ValueFrom.SecretKeyRef != nil, e.ValueFrom.FileKeyRef != nil} {
			if set {
				n++
			}
		}
		switch {
		case e.Value != "":
			errs = append(errs, field.Invalid(here.Child("valueFrom"), "", "may not be specified when `value` is not empty"))
		case n != 1:
			errs = append(errs, field.Invalid(here.Child("valueFrom"), "", "must specify exactly one source"))
		}
	}
	return errs
}

// amounts checks that no amount is negative, and no request exceeds its limit.
func amounts(r v1.ResourceRequirements, at *field.Path) (errs field.ErrorList) {
	for list, amounts := range map[string]v1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
		for name, amount := range amounts {
			here := at.Child(list).Key(string(name))
			errs = append(errs, texts(here, name, utilvalidation.IsQualifiedName(string(name)))...)
			if !strings.Contains(string(name), "/") && !standard(name) {
				errs = append(errs, field.Invalid(here, name, "must be a standard resource for containers, or have a domain"))
			}
			if amount.Sign() < 0 {
				errs = append(errs, field.Invalid(here, amount.String(), "must be greater than or equal to 0"))
			}
		}
	}
	for name, request := range r.Requests {
		limit, limited := r.Limits[name]
		if limited && request.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(at.Child("requests"), request.String(), "must be less than or equal to "+string(name)+" limit of "+limit.String()))
		}
		if mayNotExceed := !standard(name) || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix); mayNotExceed && (!limited || request.Cmp(limit) != 0) {
			errs = append(errs, field.Invalid(at.Child("requests"), request.String(), "must be equal to "+string(name)+" limit"))
		}
	}
	return errs
}

func standard(name v1.ResourceName) bool {
	return name == v1.ResourceCPU || name == v1.ResourceMemory || name == v1.ResourceEphemeralStorage ||
		strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}
