// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// stopPod terminates a deleted pod. The processes get SIGTERM when the node observes the deletion.
// They end by themselves, or are killed at the end of the grace period; then the pod is removed.
// Only a pod kept by a finalizer (such as the Job controller's) gets a final status: other pods are
// removed before a client could read that status.
//
// stopPod is called again whenever the pod's timer fires or its object changes. A second deletion
// can only shorten the grace period.
func (f *Fleet) stopPod(p *pod, now time.Time) {
	object := p.object
	grace := time.Duration(ptr.Deref(object.DeletionGracePeriodSeconds, 0)) * time.Second
	ended := isTerminal(object.Status.Phase)
	takes, killed := f.shape.scriptOf(object).stopTakes(object, grace)
	switch {
	case p.stopBy.IsZero():
		p.stopBy, p.stopGrace = now.Add(takes), grace
	case grace < p.stopGrace:
		p.stopGrace = grace
		// The new grace period begins when the node observes it.
		if sooner := now.Add(grace); sooner.Before(p.stopBy) {
			p.stopBy, killed = sooner, true
		}
	}

	if !ended && object.Status.StartTime != nil && now.Before(p.stopBy) {
		f.timers.setTimer(&p.timer, p.stopBy)
		return
	}
	if !ended && len(object.Finalizers) > 0 {
		f.writeStatus(p, endedStatus(object, killed, now))
		return
	}

	// The API server itself removes a pod deleted with grace period 0, usually within moments.
	if grace == 0 && object.DeletionGracePeriodSeconds != nil {
		if p.leftAt.IsZero() {
			p.leftAt = now.Add(patience)
		}
		if now.Before(p.leftAt) {
			f.timers.setTimer(&p.timer, p.leftAt)
			return
		}
	}
	f.removePod(p)
}

// patience is the time that the API server gets to remove a pod deleted with grace period 0. The
// API server writes the deletion and then removes the pod, in two steps. After a failure in
// between, the pod remains until it is deleted again.
const patience = 5 * time.Second

// stopTakes returns the time a pod takes to end, and whether it must be killed then. The preStop
// hooks sleep first, and SIGTERM follows, all within the grace period. For example, with a preStop
// sleep of 5 s and terminateAfter 10 s, a pod takes 15 s of its grace period of 30 s; with a grace
// period of 12 s it is killed after 12 s.
func (sc script) stopTakes(pod *v1.Pod, grace time.Duration) (time.Duration, bool) {
	var sleep time.Duration
	for i := range pod.Spec.Containers {
		if l := pod.Spec.Containers[i].Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
			sleep = max(sleep, time.Duration(l.PreStop.Sleep.Seconds)*time.Second)
		}
	}
	takes := sleep + sc.terminateAfter
	return min(takes, grace), takes > grace
}

// endedStatus returns the status of a pod right after its containers have ended. The pod has failed
// if a container ended with a non-zero code.
func endedStatus(object *v1.Pod, killed bool, now time.Time) *v1.PodStatus {
	status := object.Status.DeepCopy()
	pl := play{pod: object, now: now, status: status}
	code := int32(exitTerminated)
	if killed {
		code = exitKilled
	}

	status.InitContainerStatuses = pl.knownStatuses(object.Spec.InitContainers, status.InitContainerStatuses)
	status.ContainerStatuses = pl.knownStatuses(object.Spec.Containers, status.ContainerStatuses)
	pl.stopAll(code)
	status.ObservedGeneration = object.Generation
	status.Phase = v1.PodSucceeded
	if slices.ContainsFunc(status.ContainerStatuses, func(cs v1.ContainerStatus) bool { return cs.State.Terminated.ExitCode != 0 }) {
		status.Phase = v1.PodFailed
	}

	pl.setConditions()
	return status
}
