package agent

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// component is the source of events: tools select a node's events by it.
const component = "kubelet"

// eventsDrain is how long a stopping agent keeps writing events: that of the node's shutdown is
// among the last.
const eventsDrain = 2 * time.Second

// event reports an event about a pod. For a static pod it is about the mirror, which users see.
func (a *Agent) event(pod *v1.Pod, kind, reason, message string) {
	a.containerEvent(pod, "", kind, reason, message)
}

// containerEvent reports an event about a container of a pod.
func (a *Agent) containerEvent(pod *v1.Pod, container, kind, reason, message string) {
	a.tell(eventlog.Event{About: a.reference(pod, container), Type: kind, Reason: reason, Message: message})
}

func (a *Agent) reference(pod *v1.Pod, container string) v1.ObjectReference {
	ref := v1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
	if container != "" {
		ref.FieldPath = fieldPath(pod, container)
	}
	return ref
}

func fieldPath(pod *v1.Pod, name string) string {
	for kind, list := range map[string][]v1.Container{"containers": pod.Spec.Containers, "initContainers": pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return fmt.Sprintf("spec.%s{%s}", kind, name)
			}
		}
	}
	return fmt.Sprintf("spec.ephemeralContainers{%s}", name)
}

// tellWaits reports containers that have begun to wait for a back-off.
func (a *Agent) tellWaits(pod *v1.Pod, before *v1.PodStatus, now v1.PodStatus) {
	was := map[string]string{}
	if before != nil {
		for _, cs := range allContainers(*before) {
			if cs.State.Waiting != nil {
				was[cs.Name] = cs.State.Waiting.Reason
			}
		}
	}
	for _, cs := range allContainers(now) {
		w := cs.State.Waiting
		if w == nil || w.Reason == was[cs.Name] || !strings.HasSuffix(w.Reason, "BackOff") {
			continue
		}
		message := w.Message
		if w.Reason == "CrashLoopBackOff" {
			message = fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)", cs.Name, pod.Name, pod.Namespace, pod.UID)
		}
		a.containerEvent(pod, cs.Name, v1.EventTypeWarning, "BackOff", message)
		if w.Reason == "ImagePullBackOff" {
			a.containerEvent(pod, cs.Name, v1.EventTypeWarning, "Failed", "Error: ImagePullBackOff")
		}
	}
}

func allContainers(st v1.PodStatus) []v1.ContainerStatus {
	out := append([]v1.ContainerStatus(nil), st.InitContainerStatuses...)
	out = append(out, st.ContainerStatuses...)
	return append(out, st.EphemeralContainerStatuses...)
}
