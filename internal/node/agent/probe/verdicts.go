package probe

import (
	v1 "k8s.io/api/core/v1"
)

// Verdicts are the results of probes of a container. Unknown: none yet, or there is no such probe.
type Verdicts struct{ Startup, Readiness, Liveness Result }

func (v *Verdicts) of(kind Kind) *Result {
	switch kind {
	case Startup:
		return &v.Startup
	case Readiness:
		return &v.Readiness
	}
	return &v.Liveness
}

// Started reports whether the status shows the container as started.
func Started(c *v1.Container, running bool, v Verdicts) bool {
	return running && (c.StartupProbe == nil || v.Startup == Success)
}

// Ready reports whether the status shows the container as ready.
func Ready(c *v1.Container, running bool, v Verdicts) bool {
	return Started(c, running, v) && (c.ReadinessProbe == nil || v.Readiness == Success)
}

// Failed reports whether a running container has to be killed, and because of which probe.
func Failed(c *v1.Container, v Verdicts) (Kind, bool) {
	switch {
	case c.StartupProbe != nil && v.Startup == Failure:
		return Startup, true
	case c.LivenessProbe != nil && v.Liveness == Failure:
		return Liveness, true
	}
	return 0, false
}

// Grace is the grace period in seconds of a container that is killed because of its probe.
func Grace(pod *v1.Pod, c *v1.Container, kind Kind) int64 {
	const least = 2
	if pod.DeletionGracePeriodSeconds != nil {
		return *pod.DeletionGracePeriodSeconds
	}
	if spec := specOf(c, kind); spec != nil && spec.TerminationGracePeriodSeconds != nil {
		return *spec.TerminationGracePeriodSeconds
	}
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return least
}

func specOf(c *v1.Container, kind Kind) *v1.Probe {
	switch kind {
	case Startup:
		return c.StartupProbe
	case Readiness:
		return c.ReadinessProbe
	}
	return c.LivenessProbe
}
