// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// This file evaluates probes without running anything: a probe passes after the delay given by its
// spec, unless its command can only fail.

// runProbes evaluates a running container's startup and readiness probes. Readiness counts only
// once the startup probe has passed. AnnotationReady overrides the readiness probe.
func (p *play) runProbes(c *v1.Container, cs *v1.ContainerStatus) {
	began := cs.State.Running.StartedAt.Time
	up, upAt := probeResult(c.StartupProbe, began)
	started := up && !p.now.Before(upAt)
	ready := false
	if up && !started {
		p.wakeAt(upAt)
	}

	if ok, at := probeResult(c.ReadinessProbe, began); started && ok {
		ready = !p.now.Before(at)
		if !ready {
			p.wakeAt(at)
		}
	}

	// The annotation sets the result of every readiness probe.
	cs.Ready = started && ptr.Deref(p.script.ready, ready)
	cs.Started = &started
}

// probeResult reports whether a probe ever passes, and if so, since when. A command that can only
// fail never passes. Any other probe first succeeds after its initial delay and then in every
// period, and passes when its success threshold is reached. began is the start of the container;
// the time is zero for a probe that never passes.
func probeResult(probe *v1.Probe, began time.Time) (bool, time.Time) {
	if probe == nil {
		return true, began
	}
	if probe.Exec != nil && alwaysFails(probe.Exec.Command) {
		return false, time.Time{}
	}
	// The first success is right after the delay; each further required success takes one period.
	wait := int64(probe.InitialDelaySeconds)
	if more := int64(probe.SuccessThreshold) - 1; more > 0 {
		wait += more * int64(max(probe.PeriodSeconds, 1))
	}
	if wait == 0 {
		return true, began
	}
	// Add a second, because the start time is stored without its fraction.
	return true, began.Add(time.Duration(wait+1) * time.Second)
}

// alwaysFails recognises `false` and `exit N`, directly or run by a shell. Any other command is
// assumed to succeed, because simulated nodes run nothing.
func alwaysFails(command []string) bool {
	shells := []string{"sh", "/bin/sh", "bash", "/bin/bash", "ash", "/bin/ash"}
	if len(command) == 3 && slices.Contains(shells, command[0]) && command[1] == "-c" {
		command = strings.Fields(command[2])
	}
	switch {
	case len(command) == 1:
		return command[0] == "false" || command[0] == "/bin/false"
	case len(command) == 2:
		return command[0] == "exit" && command[1] != "0"
	}
	return false
}

// isUnhealthy reports whether the readiness probe of a running container always fails, which a
// kubelet reports as an event. It returns false if AnnotationReady is set.
func (p *play) isUnhealthy() bool {
	for i := range p.status.ContainerStatuses {
		probe := p.pod.Spec.Containers[i].ReadinessProbe
		if p.script.ready == nil && p.status.ContainerStatuses[i].State.Running != nil &&
			probe != nil && probe.Exec != nil && alwaysFails(probe.Exec.Command) {
			return true
		}
	}
	return false
}
