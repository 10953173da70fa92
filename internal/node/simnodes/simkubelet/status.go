// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file derives a pod's phase and conditions from the states of its containers, as played by
// containers.go. The rules and their order are the kubelet's.

// podPhase returns the phase derived from the containers' states, by the kubelet's rules:
//
//	init containers not done, or a container not yet begun    Pending
//	a container runs, or will be restarted                    Running
//	all have ended, at least one with an error                Failed
//	all have ended without an error                           Succeeded
func (p *play) podPhase() v1.PodPhase {
	waiting, running, ended, failed, restarting := 0, 0, 0, 0, 0
	for i := range p.pod.Spec.InitContainers {
		c, cs := &p.pod.Spec.InitContainers[i], &p.status.InitContainerStatuses[i]
		switch t := cs.State.Terminated; {
		// Sidecars do not count for the phase.
		case rules.IsSidecar(c):
		case t == nil:
			waiting++
		// The regular containers will never start.
		case t.ExitCode != 0 && !p.mayRestart(c, t.ExitCode):
			return v1.PodFailed
		}
	}

	for i := range p.status.ContainerStatuses {
		c, cs := &p.pod.Spec.Containers[i], &p.status.ContainerStatuses[i]
		last := cs.State.Terminated
		// In back-off between two runs, the last run counts.
		if last == nil && cs.State.Waiting != nil {
			last = cs.LastTerminationState.Terminated
		}
		switch {
		case cs.State.Running != nil:
			running++
		case last == nil:
			waiting++
		default:
			ended++
			if last.ExitCode != 0 {
				failed++
			}
			if p.mayRestart(c, last.ExitCode) {
				restarting++
			}
		}
	}

	switch {
	// A pod stays Pending until all containers have been started once, even if some already run.
	case waiting > 0:
		return v1.PodPending
	case running > 0 || restarting > 0:
		return v1.PodRunning
	case failed > 0:
		return v1.PodFailed
	}

	return v1.PodSucceeded
}

// enforceDeadline ends a pod at the end of its active deadline, counted from the start time of the
// pod, not of its containers.
func (p *play) enforceDeadline() {
	seconds := p.pod.Spec.ActiveDeadlineSeconds
	if seconds == nil || isTerminal(p.status.Phase) {
		return
	}
	if at := endOf(*p.status.StartTime, time.Duration(*seconds)*time.Second); p.now.Before(at) {
		p.wakeAt(at)
		return
	}
	// The pod no longer changes spontaneously.
	p.wake = time.Time{}
	p.stopAll(exitTerminated)
	p.status.Phase = v1.PodFailed
	p.status.Reason = "DeadlineExceeded"
	p.status.Message = "Pod was active on the node longer than the specified deadline"
}

// setConditions sets the kubelet's conditions in its order, and keeps the conditions of other
// writers. The condition Ready follows from the pod's containers and its readiness gates.
func (p *play) setConditions() {
	p.setCondition(v1.PodReadyToStartContainers, p.status.Phase == v1.PodPending || p.status.Phase == v1.PodRunning, "", "")
	p.setInitialized()
	ready, reason, message := p.containersReady()
	// The order of the cases is the kubelet's: unready containers are reported before gates.
	if !ready {
		p.setCondition(v1.PodReady, false, reason, message)
	} else if message := p.gatesClosed(); message != "" {
		p.setCondition(v1.PodReady, false, "ReadinessGatesNotReady", message)
	} else {
		p.setCondition(v1.PodReady, true, "", "")
	}
	p.setCondition(v1.ContainersReady, ready, reason, message)
	p.setCondition(v1.PodScheduled, true, "", "")
}

// setInitialized sets the condition Initialized. Once a regular container has begun, the condition
// stays true, even while an init container runs again.
func (p *play) setInitialized() {
	var incomplete []string
	for i := range p.pod.Spec.InitContainers {
		c, cs := &p.pod.Spec.InitContainers[i], &p.status.InitContainerStatuses[i]
		if done := cs.Ready || rules.IsSidecar(c) && cs.Started != nil && *cs.Started; !done {
			incomplete = append(incomplete, c.Name)
		}
	}

	begun := slices.ContainsFunc(p.status.ContainerStatuses, func(cs v1.ContainerStatus) bool {
		return cs.State.Waiting == nil || cs.LastTerminationState.Terminated != nil
	})
	switch {
	case p.status.Phase == v1.PodSucceeded:
		p.setCondition(v1.PodInitialized, true, "PodCompleted", "")
	case begun || len(incomplete) == 0:
		p.setCondition(v1.PodInitialized, true, "", "")
	default:
		p.setCondition(v1.PodInitialized, false, "ContainersNotInitialized",
			fmt.Sprintf("containers with incomplete status: %s", incomplete))
	}
}

// containersReady reports whether all containers and sidecars are ready. If not, it also returns
// the reason and message of the condition.
func (p *play) containersReady() (bool, string, string) {
	switch p.status.Phase {
	case v1.PodSucceeded:
		return false, "PodCompleted", ""
	case v1.PodFailed:
		return false, "PodFailed", ""
	}

	var unready []string
	for i := range p.pod.Spec.InitContainers {
		if rules.IsSidecar(&p.pod.Spec.InitContainers[i]) && !p.status.InitContainerStatuses[i].Ready {
			unready = append(unready, p.pod.Spec.InitContainers[i].Name)
		}
	}

	for i := range p.status.ContainerStatuses {
		if !p.status.ContainerStatuses[i].Ready {
			unready = append(unready, p.status.ContainerStatuses[i].Name)
		}
	}

	if len(unready) > 0 {
		return false, "ContainersNotReady", fmt.Sprintf("containers with unready status: %s", unready)
	}
	return true, "", ""
}

// gatesClosed lists the readiness gates that keep the pod from being Ready. It is empty if all are
// open.
func (p *play) gatesClosed() string {
	var closed []string
	for _, gate := range p.pod.Spec.ReadinessGates {
		switch c := rules.PodCondition(p.status, gate.ConditionType); {
		case c == nil:
			closed = append(closed, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case c.Status != v1.ConditionTrue:
			closed = append(closed, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v",
				gate.ConditionType, c.Status))
		}
	}
	return strings.Join(closed, ", ")
}

// setCondition sets a condition of the pod as of its current generation. The transition time
// changes only if the status does.
func (p *play) setCondition(kind v1.PodConditionType, is bool, reason, message string) {
	status := v1.ConditionFalse
	if is {
		status = v1.ConditionTrue
	}
	c := rules.PodCondition(p.status, kind)
	if c == nil {
		p.status.Conditions = append(p.status.Conditions, v1.PodCondition{Type: kind})
		c = &p.status.Conditions[len(p.status.Conditions)-1]
	}
	if c.Status != status {
		c.LastTransitionTime = toSeconds(p.now)
	}
	c.Status, c.Reason, c.Message, c.ObservedGeneration = status, reason, message, p.pod.Generation
}

// isTerminal reports whether a phase is final.
func isTerminal(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }
