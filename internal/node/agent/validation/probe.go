package validation

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// runs are the rules for containers that run as long as the pod: hooks and probes.
func (v visitor) runs(c *v1.Container, at *field.Path) (errs field.ErrorList) {
	for kind, p := range map[string]*v1.Probe{"livenessProbe": c.LivenessProbe, "readinessProbe": c.ReadinessProbe, "startupProbe": c.StartupProbe} {
		if p == nil {
			continue
		}
		here := at.Child(kind)
		errs = append(errs, probe(p, here)...)
		if kind == "readinessProbe" {
			if p.TerminationGracePeriodSeconds != nil {
				errs = append(errs, field.Invalid(here.Child("terminationGracePeriodSeconds"), *p.TerminationGracePeriodSeconds, "must not be set for readinessProbes"))
			}
		} else if p.SuccessThreshold != 1 {
			errs = append(errs, field.Invalid(here.Child("successThreshold"), p.SuccessThreshold, "must be 1"))
		}
	}
	if l := c.Lifecycle; l != nil {
		for name, hook := range map[string]*v1.LifecycleHandler{"postStart": l.PostStart, "preStop": l.PreStop} {
			if hook != nil {
				errs = append(errs, v.hook(hook, at.Child("lifecycle", name))...)
			}
		}
	}
	return errs
}

func (v visitor) hook(hook *v1.LifecycleHandler, at *field.Path) (errs field.ErrorList) {
	handlers := 0
	if hook.Sleep != nil {
		handlers++
		grace := int64(0)
		if g := v.spec.TerminationGracePeriodSeconds; g != nil {
			grace = *g
			if grace < 0 {
				grace = 1 // as the API server does
			}
		}
		if s := hook.Sleep.Seconds; s < 0 || s > grace {
			errs = append(errs, field.Invalid(at.Child("sleep"), s, "must be non-negative and less than terminationGracePeriodSeconds"))
		}
	}
	return append(errs, handler(v1.ProbeHandler{Exec: hook.Exec, HTTPGet: hook.HTTPGet, TCPSocket: hook.TCPSocket}, handlers, at)...)
}

func probe(p *v1.Probe, at *field.Path) field.ErrorList {
	errs := handler(p.ProbeHandler, 0, at)
	for name, n := range map[string]int32{
		"initialDelaySeconds": p.InitialDelaySeconds, "timeoutSeconds": p.TimeoutSeconds, "periodSeconds": p.PeriodSeconds,
		"successThreshold": p.SuccessThreshold, "failureThreshold": p.FailureThreshold,
	} {
		if n < 0 {
			errs = append(errs, field.Invalid(at.Child(name), n, "must be greater than or equal to 0"))
		}
	}
	if grace := p.TerminationGracePeriodSeconds; grace != nil && *grace <= 0 {
		errs = append(errs, field.Invalid(at.Child("terminationGracePeriodSeconds"), *grace, "must be greater than 0"))
	}
	return errs
}

// handler checks that there is exactly one handler, others included: those counted already.
func handler(h v1.ProbeHandler, others int, at *field.Path) (errs field.ErrorList) {
	if h.Exec != nil {
		others++
		if len(h.Exec.Command) == 0 {
			errs = append(errs, field.Required(at.Child("exec", "command"), ""))
		}
	}
	if g := h.HTTPGet; g != nil {
		others++
		here := at.Child("httpGet")
		if g.Path == "" {
			errs = append(errs, field.Required(here.Child("path"), ""))
		}
		errs = append(errs, portOf(g.Port, here.Child("port"))...)
		errs = append(errs, oneOf(here.Child("scheme"), g.Scheme, v1.URISchemeHTTP, v1.URISchemeHTTPS)...)
		for i, header := range g.HTTPHeaders {
			errs = append(errs, texts(here.Child("httpHeaders").Index(i).Child("name"), header.Name, utilvalidation.IsHTTPHeaderName(header.Name))...)
		}
	}
	if h.TCPSocket != nil {
		others++
		errs = append(errs, portOf(h.TCPSocket.Port, at.Child("tcpSocket", "port"))...)
	}
	if h.GRPC != nil {
		others++
		errs = append(errs, texts(at.Child("grpc", "port"), h.GRPC.Port, utilvalidation.IsValidPortNum(int(h.GRPC.Port)))...)
	}
	switch {
	case others == 0:
		errs = append(errs, field.Required(at, "must specify a handler type"))
	case others > 1:
		errs = append(errs, field.Forbidden(at, "may not specify more than 1 handler type"))
	}
	return errs
}

func portOf(p intstr.IntOrString, at *field.Path) field.ErrorList {
	if p.Type == intstr.String {
		return texts(at, p.StrVal, utilvalidation.IsValidPortName(p.StrVal))
	}
	return texts(at, p.IntVal, utilvalidation.IsValidPortNum(p.IntValue()))
}
