package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// refusal is an error with a status code.
type refusal struct {
	code    int
	message string
}

func (r *refusal) Error() string { return r.message }

func refuse(code int, format string, values ...any) error {
	return &refusal{code: code, message: fmt.Sprintf(format, values...)}
}

// fail answers with an error, with its own code or with one that fits the runtime's error.
func fail(w http.ResponseWriter, err error) {
	if r, ok := err.(*refusal); ok {
		http.Error(w, r.message, r.code)
		return
	}
	code := http.StatusInternalServerError
	switch status.Code(err) {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.InvalidArgument:
		code = http.StatusBadRequest
	case codes.Unavailable:
		code = http.StatusServiceUnavailable
	case codes.ResourceExhausted:
		w.Header().Set("Retry-After", "1")
		code = http.StatusTooManyRequests
	}
	http.Error(w, err.Error(), code)
}

// pod returns the pod with this name and, if given, this UID. Without a UID the first of that name
// is meant.
func (s *Server) pod(r route) (*v1.Pod, error) {
	named := false
	for _, p := range s.options.Pods() {
		if p.Namespace != r.namespace || p.Name != r.pod {
			continue
		}
		if named = true; r.uid == "" || string(p.UID) == r.uid {
			return p, nil
		}
	}
	if named {
		return nil, refuse(http.StatusNotFound, "pod %q has another UID than %s", r.pod, r.uid)
	}
	return nil, refuse(http.StatusNotFound, "pod %q does not exist", r.pod)
}

// container looks up a container of the pod by name, of any kind. attach needs to know whether it
// has a terminal.
func container(pod *v1.Pod, name string) (tty bool, err error) {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return list[i].TTY, nil
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := &pod.Spec.EphemeralContainers[i]; c.Name == name {
			return c.TTY, nil
		}
	}
	return false, refuse(http.StatusNotFound, "container %q not found in pod %q", name, pod.Name)
}

func containerStatus(pod *v1.Pod, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{
		pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// running returns the runtime's ID of a running container.
func running(pod *v1.Pod, name string) (string, error) {
	c := containerStatus(pod, name)
	if c == nil || c.State.Running == nil {
		return "", refuse(http.StatusNotFound, "container not found (%q)", name)
	}
	return bare(c.ContainerID), nil
}

// logged returns the ID of the container whose log is requested: the running one or, if none runs,
// the last one. Messages about missing logs are upstream's, since people search for them.
func logged(pod *v1.Pod, name string, previous bool) (string, error) {
	c := containerStatus(pod, name)
	if c == nil {
		return "", refuse(http.StatusBadRequest, "container %q in pod %q is not available", name, pod.Name)
	}
	last := ""
	if c.LastTerminationState.Terminated != nil {
		last = bare(c.LastTerminationState.Terminated.ContainerID)
	}
	state := c.State
	switch {
	case previous && last == "":
		return "", refuse(http.StatusBadRequest, "previous terminated container %q in pod %q not found", name, pod.Name)
	case previous:
		return last, nil
	case state.Running != nil:
		return bare(c.ContainerID), nil
	case state.Terminated != nil && state.Terminated.ContainerID != "":
		return bare(state.Terminated.ContainerID), nil
	case last != "":
		return last, nil
	case state.Terminated != nil, c.LastTerminationState.Terminated != nil:
		return "", refuse(http.StatusBadRequest, "container %q in pod %q is terminated", name, pod.Name)
	case state.Waiting == nil:
		return "", refuse(http.StatusBadRequest, "container %q in pod %q is waiting to start - no logs yet", name, pod.Name)
	}
	why := state.Waiting.Reason
	switch why {
	case "ErrImagePull":
		why = "image can't be pulled"
	case "ImagePullBackOff":
		why = "trying and failing to pull image"
	}
	return "", refuse(http.StatusBadRequest, "container %q in pod %q is waiting to start: %s", name, pod.Name, why)
}

// bare strips the runtime's name from a container ID: containerd://0123 becomes 0123.
func bare(id string) string {
	if _, after, ok := strings.Cut(id, "://"); ok {
		return after
	}
	return id
}

// sandbox returns the ID of the pod's ready sandbox.
func (s *Server) sandbox(ctx context.Context, name string, uid types.UID) (string, error) {
	found, err := s.options.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(uid)},
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	})
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", refuse(http.StatusNotFound, "pod %q does not run", name)
	}
	return found[0].Id, nil
}
