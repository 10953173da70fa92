package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Owned reports whether a condition is the node's. All others are left as the API has them.
func Owned(t v1.PodConditionType) bool {
	switch t {
	case v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled, v1.PodResizePending, v1.PodResizeInProgress:
		return true
	}
	return false
}

func (d *decision) conditions(st *v1.PodStatus) {
	old := st.Conditions
	st.Conditions = nil
	for _, c := range d.Pod.Status.Conditions {
		if !Owned(c.Type) {
			st.Conditions = append(st.Conditions, c)
		}
	}
	if c := conditionOf(old, v1.DisruptionTarget); c != nil && conditionOf(st.Conditions, v1.DisruptionTarget) == nil {
		st.Conditions = append(st.Conditions, *c)
	}
	if d.Ending != nil && d.Ending.Condition != nil {
		d.put(st, old, *d.Ending.Condition)
	}
	d.put(st, old, truth(v1.PodReadyToStartContainers, d.sandbox != nil, "", ""))
	d.put(st, old, d.initializedCondition(st))
	ready := d.containersReady(st)
	gated := ready
	if message := gatesClosed(d.Pod, st); ready.Status == v1.ConditionTrue && message != "" {
		gated = truth("", false, "ReadinessGatesNotReady", message)
	}
	gated.Type = v1.PodReady
	d.put(st, old, gated)
	d.put(st, old, ready)
	d.put(st, old, truth(v1.PodScheduled, true, "", ""))
	d.resizeConditions(st, old)
}

func truth(t v1.PodConditionType, is bool, reason, message string) v1.PodCondition {
	c := v1.PodCondition{Type: t, Status: v1.ConditionFalse, Reason: reason, Message: message}
	if is {
		c.Status = v1.ConditionTrue
	}
	return c
}

// put sets a condition. Its transition time changes only with its status.
func (d *decision) put(st *v1.PodStatus, old []v1.PodCondition, c v1.PodCondition) {
	c.ObservedGeneration = d.Pod.Generation
	c.LastTransitionTime = metav1.NewTime(d.Now)
	if before := conditionOf(old, c.Type); before != nil {
		c.LastProbeTime = before.LastProbeTime
		if before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
	}
	if i := slices.IndexFunc(st.Conditions, func(have v1.PodCondition) bool { return have.Type == c.Type }); i >= 0 {
		st.Conditions[i] = c
		return
	}
	st.Conditions = append(st.Conditions, c)
}

func conditionOf(list []v1.PodCondition, t v1.PodConditionType) *v1.PodCondition {
	if i := slices.IndexFunc(list, func(c v1.PodCondition) bool { return c.Type == t }); i >= 0 {
		return &list[i]
	}
	return nil
}

func (d *decision) initializedCondition(st *v1.PodStatus) v1.PodCondition {
	var incomplete []string
	for i := range d.Pod.Spec.InitContainers {
		c, cs := &d.Pod.Spec.InitContainers[i], &st.InitContainerStatuses[i]
		if done := cs.Ready && !Sidecar(c) || Sidecar(c) && cs.Started != nil && *cs.Started; !done {
			incomplete = append(incomplete, c.Name)
		}
	}
	begun := slices.ContainsFunc(st.ContainerStatuses, func(cs v1.ContainerStatus) bool {
		return cs.State.Waiting == nil || cs.LastTerminationState.Terminated != nil
	})
	switch {
	case st.Phase == v1.PodSucceeded:
		return truth(v1.PodInitialized, true, "PodCompleted", "")
	case begun || len(incomplete) == 0:
		return truth(v1.PodInitialized, true, "", "")
	}
	return truth(v1.PodInitialized, false, "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %s", incomplete))
}

func (d *decision) containersReady(st *v1.PodStatus) v1.PodCondition {
	const kind = v1.ContainersReady
	switch {
	case st.Phase == v1.PodSucceeded:
		return truth(kind, false, "PodCompleted", "")
	case st.Phase == v1.PodFailed, d.Ending != nil && d.Ending.Phase == v1.PodFailed:
		return truth(kind, false, "PodFailed", "")
	}
	var unready []string
	for i := range d.Pod.Spec.InitContainers {
		if Sidecar(&d.Pod.Spec.InitContainers[i]) && !st.InitContainerStatuses[i].Ready {
			unready = append(unready, d.Pod.Spec.InitContainers[i].Name)
		}
	}
	for i := range st.ContainerStatuses {
		if !st.ContainerStatuses[i].Ready {
			unready = append(unready, st.ContainerStatuses[i].Name)
		}
	}
	if len(unready) > 0 {
		return truth(kind, false, "ContainersNotReady", fmt.Sprintf("containers with unready status: %s", unready))
	}
	return truth(kind, true, "", "")
}

// gatesClosed returns which readiness gates keep a pod from being Ready.
func gatesClosed(pod *v1.Pod, st *v1.PodStatus) string {
	var closed []string
	for _, gate := range pod.Spec.ReadinessGates {
		switch c := conditionOf(st.Conditions, gate.ConditionType); {
		case c == nil:
			closed = append(closed, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case c.Status != v1.ConditionTrue:
			closed = append(closed, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, c.Status))
		}
	}
	return strings.Join(closed, ", ")
}
