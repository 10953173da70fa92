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

// containerStatuses returns those of a pod's containers.
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

func restartsOf(o *v1.Pod, initial bool) (sum int32) {
	for _, s := range containerStatuses(o, initial, false) {
		sum += s.RestartCount
	}
	return sum
}

// The states that the arguments of a plugin may name.
var (
	restartStates  = []string{string(v1.PodRunning), "CrashLoopBackOff"}
	lifetimeStates = []string{
		string(v1.PodRunning), string(v1.PodPending), string(v1.PodSucceeded), string(v1.PodFailed), string(v1.PodUnknown),
		"NodeAffinity", "NodeLost", "Shutdown", "UnexpectedAdmissionError",
		"PodInitializing", "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError", "ErrImagePull",
		"CreateContainerError", "InvalidImageName",
		"OOMKilled", "Error", "Completed", "DeadlineExceeded", "Evicted", "ContainerCannotRun", "StartError",
	}
)

// checkStates refuses states that are not among these.
func (r *reader) checkStates(at *yaml.Node, plugin string, states, of []string) {
	for _, state := range states {
		if !slices.Contains(of, state) {
			r.setError(at, "%s: states: %q: must be one of %s", plugin, state, strings.Join(of, ", "))
		}
	}
}

// inState reports whether the pod's phase, its reason, or the reason why a container waits or has
// terminated is one of these; an empty list means any.
func inState(o *v1.Pod, states []string, initial, ephemeral bool) bool {
	if len(states) == 0 || slices.Contains(states, string(o.Status.Phase)) {
		return true
	}
	return slices.ContainsFunc(states, func(state string) bool {
		return o.Status.Reason == state || slices.ContainsFunc(containerStatuses(o, initial, ephemeral), func(s v1.ContainerStatus) bool {
			return s.State.Waiting != nil && s.State.Waiting.Reason == state || s.State.Terminated != nil &&
				s.State.Terminated.Reason == state
		})
	})
}

func hasReason(o *v1.Pod, reason string, initial bool) bool {
	return o.Status.Reason == reason || slices.ContainsFunc(containerStatuses(o, initial, false), func(s v1.ContainerStatus) bool {
		return s.State.Waiting != nil && s.State.Waiting.Reason == reason || s.State.Terminated != nil &&
			s.State.Terminated.Reason == reason
	})
}

// condition is one of the conditions of PodLifeTime; what is not set holds for any.
type condition struct {
	Type                              string `json:"type"`
	Status                            string `json:"status"`
	Reason                            string `json:"reason"`
	MinTimeSinceLastTransitionSeconds *uint  `json:"minTimeSinceLastTransitionSeconds"`
}

// hasCondition reports whether the pod has one of these conditions; an empty list means any.
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

// isOlder reports whether a pod is older than so many seconds, whole ones as in the descheduler.
func isOlder(age time.Duration, seconds uint) bool {
	return math.Trunc(age.Seconds()) > float64(seconds)
}

// hasExited reports whether a container has terminated with one of these codes; an empty list means
// any.
func hasExited(o *v1.Pod, codes []int32, initial bool) bool {
	return len(codes) == 0 || slices.ContainsFunc(containerStatuses(o, initial, false), func(s v1.ContainerStatus) bool {
		return s.State.Terminated != nil && slices.Contains(codes, s.State.Terminated.ExitCode)
	})
}

// ofKind reports whether the kinds of the pod's owners are included, and none is excluded.
func ofKind(o *v1.Pod, include, exclude []string) bool {
	is := func(kinds []string) bool {
		return slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return slices.Contains(kinds, r.Kind) })
	}
	return (len(include) == 0 || is(include)) && !is(exclude)
}

func emptyOrEqual(want, have string) bool { return want == "" || want == have }
