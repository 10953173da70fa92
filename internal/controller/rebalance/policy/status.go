// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// containerStatuses returns the statuses of a pod's containers. initial adds init containers, and
// ephemeral adds ephemeral containers. The caller may modify the list.
func containerStatuses(o *v1.Pod, initial, ephemeral bool) []v1.ContainerStatus {
	list := slices.Clone(o.Status.ContainerStatuses)
	if initial {
		list = append(list, o.Status.InitContainerStatuses...)
	}
	if ephemeral {
		list = append(list, o.Status.EphemeralContainerStatuses...)
	}
	return list
}

// restartsOf sums up the restarts of a pod's containers; initial includes init containers.
func restartsOf(o *v1.Pod, initial bool) (sum int32) {
	for _, s := range containerStatuses(o, initial, false) {
		sum += s.RestartCount
	}
	return sum
}

// The states that the arguments of a plugin may name.
var (
	// Both lists match the descheduler's validation, which refuses a policy with any other state.
	restartStates = []string{string(v1.PodRunning), "CrashLoopBackOff"}
	// Phases, then reasons of a pod, then waiting reasons of containers, then termination reasons
	// of containers.
	lifetimeStates = []string{
		string(v1.PodRunning), string(v1.PodPending), string(v1.PodSucceeded), string(v1.PodFailed), string(v1.PodUnknown),
		"NodeAffinity", "NodeLost", "Shutdown", "UnexpectedAdmissionError",
		"PodInitializing", "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError", "ErrImagePull",
		"CreateContainerError", "InvalidImageName",
		"OOMKilled", "Error", "Completed", "DeadlineExceeded", "Evicted", "ContainerCannotRun", "StartError",
	}
)

// checkStates refuses states that are not in the list. A misspelt state would silently select no
// pod.
func (r *reader) checkStates(at *yaml.Node, plugin string, states, of []string) {
	for _, state := range states {
		if !slices.Contains(of, state) {
			r.setError(at, "%s: states: %q: must be one of %s", plugin, state, strings.Join(of, ", "))
		}
	}
}

// inState reports whether the pod's phase, its reason, or the waiting or termination reason of a
// container is one of these; an empty list means any. initial and ephemeral include init and
// ephemeral containers.
func inState(o *v1.Pod, states []string, initial, ephemeral bool) bool {
	if len(states) == 0 || slices.Contains(states, string(o.Status.Phase)) {
		return true
	}
	return slices.ContainsFunc(states, func(state string) bool {
		return o.Status.Reason == state || slices.ContainsFunc(containerStatuses(o, initial, ephemeral), func(s v1.ContainerStatus) bool {
			// A container is in one state at a time, and a running container lacks a reason.
			return s.State.Waiting != nil && s.State.Waiting.Reason == state || s.State.Terminated != nil &&
				s.State.Terminated.Reason == state
		})
	})
}

// hasReason reports whether the pod's status, or a waiting or terminated container, has this
// reason. Unlike inState, it ignores the phase.
func hasReason(o *v1.Pod, reason string, initial bool) bool {
	return o.Status.Reason == reason || slices.ContainsFunc(containerStatuses(o, initial, false), func(s v1.ContainerStatus) bool {
		return s.State.Waiting != nil && s.State.Waiting.Reason == reason || s.State.Terminated != nil &&
			s.State.Terminated.Reason == reason
	})
}

// condition is one of the conditions of PodLifeTime; unset fields match any value. The zero value
// would match any condition of any pod, and is refused.
type condition struct {
	Type                              string `json:"type"`
	Status                            string `json:"status"`
	Reason                            string `json:"reason"`
	MinTimeSinceLastTransitionSeconds *uint  `json:"minTimeSinceLastTransitionSeconds"`
}

// hasCondition reports whether the pod has one of these conditions; an empty list means any. All
// fields must match the same condition of the pod. A condition without a transition time is never
// old enough.
func hasCondition(o *v1.Pod, list []condition, now time.Time) bool {
	return len(list) == 0 || slices.ContainsFunc(o.Status.Conditions, func(have v1.PodCondition) bool {
		return slices.ContainsFunc(list, func(c condition) bool {
			since := c.MinTimeSinceLastTransitionSeconds
			lasts := since == nil || !have.LastTransitionTime.IsZero() && now.Sub(have.LastTransitionTime.Time).Seconds() >= float64(*since)
			return emptyOrEqual(c.Type, string(have.Type)) && emptyOrEqual(c.Status, string(have.Status)) &&
				emptyOrEqual(c.Reason, have.Reason) && lasts
		})
	})
}

// isOlder reports whether a pod is older than a number of seconds, comparing whole seconds as in
// the descheduler. A pod of 3600.9 s is not older than 3600.
func isOlder(age time.Duration, seconds uint) bool {
	return math.Trunc(age.Seconds()) > float64(seconds)
}

// hasExited reports whether a container has terminated with one of these codes; an empty list means
// any. Only the current state of a container counts, not the state before its last restart.
func hasExited(o *v1.Pod, codes []int32, initial bool) bool {
	return len(codes) == 0 || slices.ContainsFunc(containerStatuses(o, initial, false), func(s v1.ContainerStatus) bool {
		return s.State.Terminated != nil && slices.Contains(codes, s.State.Terminated.ExitCode)
	})
}

// ofKind reports whether an owner of the pod has an included kind, and no owner has an excluded
// kind. All owners count, not only the controller, as in the descheduler. An empty include means
// any kind.
func ofKind(o *v1.Pod, include, exclude []string) bool {
	is := func(kinds []string) bool {
		return slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return slices.Contains(kinds, r.Kind) })
	}
	return (len(include) == 0 || is(include)) && !is(exclude)
}

// emptyOrEqual reports whether a field of a condition is omitted or has the given value.
func emptyOrEqual(want, have string) bool { return want == "" || want == have }
