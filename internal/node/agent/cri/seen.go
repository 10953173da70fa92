package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// Owner is the pod that something in the runtime belongs to.
type Owner struct {
	UID             types.UID
	Namespace, Name string
}

// Glance is a pod's state in the runtime, condensed to a line that changes whenever the state does.
// It is cheap to get for all pods at once.
type Glance struct {
	Owner
	// Mine: this node's agent made it.
	Mine  bool
	State string
}

// Glances returns those of all pods.
func (r *Runtime) Glances(ctx context.Context) (map[types.UID]Glance, error) {
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	sandboxes, err := r.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, err
	}
	containers, err := r.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	lines := map[types.UID][]string{}
	out := map[types.UID]Glance{}
	for _, s := range sandboxes {
		uid := types.UID(s.Labels[LabelPodUID])
		g := out[uid]
		g.Owner = Owner{uid, s.Labels[LabelPodNamespace], s.Labels[LabelPodName]}
		g.Mine = g.Mine || s.Annotations[annotationNode] == r.Node
		out[uid] = g
		lines[uid] = append(lines[uid], s.Id+s.State.String())
	}
	for _, c := range containers {
		uid := types.UID(c.Labels[LabelPodUID])
		if g, known := out[uid]; !known {
			// No container outlives its sandbox, so this one's was created between the two
			// requests.
			g.Owner = Owner{uid, c.Labels[LabelPodNamespace], c.Labels[LabelPodName]}
			out[uid] = g
		}
		lines[uid] = append(lines[uid], c.Id+c.State.String())
	}
	for uid, g := range out {
		slices.Sort(lines[uid])
		g.State = fmt.Sprint(lines[uid])
		out[uid] = g
	}
	delete(out, "")
	return out, nil
}

// Seen returns a pod's sandboxes and containers, newest first.
func (r *Runtime) Seen(ctx context.Context, uid types.UID) (lifecycle.Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	var seen lifecycle.Seen
	selector := map[string]string{LabelPodUID: string(uid)}
	sandboxes, err := r.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: selector})
	if err != nil {
		return seen, err
	}
	for _, s := range sandboxes {
		one, err := r.sandbox(ctx, s)
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return seen, err
		}
		seen.Sandboxes = append(seen.Sandboxes, one)
	}
	containers, err := r.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: selector})
	if err != nil {
		return seen, err
	}
	for _, c := range containers {
		response, err := r.Runtime.ContainerStatus(ctx, c.Id, false)
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return seen, err
		}
		if response.GetStatus() == nil {
			return seen, fmt.Errorf("container %s: %w", c.Id, errNoStatus)
		}
		seen.Containers = append(seen.Containers, r.container(response.GetStatus(), c.PodSandboxId))
	}
	slices.SortStableFunc(seen.Sandboxes, func(a, b lifecycle.Sandbox) int { return b.CreatedAt.Compare(a.CreatedAt) })
	slices.SortStableFunc(seen.Containers, func(a, b lifecycle.Container) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return seen, nil
}

// errNoStatus is the error of an empty answer, which does not mean that the sandbox or container is
// gone.
var errNoStatus = errors.New("the container runtime answers without a status")

func (r *Runtime) sandbox(ctx context.Context, s *runtimeapi.PodSandbox) (lifecycle.Sandbox, error) {
	out := lifecycle.Sandbox{ID: s.Id, CreatedAt: time.Unix(0, s.CreatedAt), Attempt: s.GetMetadata().GetAttempt()}
	response, err := r.Runtime.PodSandboxStatus(ctx, s.Id, false)
	if err != nil {
		return out, err
	}
	st := response.GetStatus()
	if st == nil {
		return out, fmt.Errorf("sandbox %s: %w", s.Id, errNoStatus)
	}
	out.Ready = st.State == runtimeapi.PodSandboxState_SANDBOX_READY
	out.HostNetwork = st.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
	if ip := st.GetNetwork().GetIp(); ip != "" {
		out.IPs = append(out.IPs, ip)
	}
	for _, more := range st.GetNetwork().GetAdditionalIps() {
		out.IPs = append(out.IPs, more.Ip)
	}
	return out, nil
}

func (r *Runtime) container(st *runtimeapi.ContainerStatus, sandbox string) lifecycle.Container {
	attempt := int(st.GetMetadata().GetAttempt())
	if n, err := strconv.Atoi(st.Annotations[annotationRestartCount]); err == nil {
		attempt = n
	}
	out := lifecycle.Container{
		ID: st.Id, SandboxID: sandbox, Name: st.Labels[LabelContainerName], Attempt: attempt,
		Hash: st.Annotations[annotationHash], Image: st.GetImage().GetImage(), ImageRef: st.ImageRef,
		CreatedAt: time.Unix(0, st.CreatedAt), State: lifecycle.Unknown,
	}
	if text, has := st.Annotations[annotationResources]; has {
		var made v1.ResourceRequirements
		if err := json.Unmarshal([]byte(text), &made); err == nil {
			out.Resources = &made
		}
	}
	if user := st.GetUser().GetLinux(); user != nil {
		out.User = &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: user.Uid, GID: user.Gid, SupplementalGroups: user.SupplementalGroups}}
	}
	switch st.State {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		out.State = lifecycle.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		out.State = lifecycle.Running
		out.StartedAt = time.Unix(0, st.StartedAt)
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		out.State = lifecycle.Exited
		out.StartedAt, out.FinishedAt = time.Unix(0, st.StartedAt), time.Unix(0, st.FinishedAt)
		out.ExitCode, out.Reason = st.ExitCode, st.Reason
		out.Message = lastWords(st)
	}
	return out
}

// lastWords is a container's termination message: from its file or, if it failed and its policy
// asks for that, the end of its log; what the runtime reports comes first.
func lastWords(st *runtimeapi.ContainerStatus) string {
	text := fileEnd("/", messageFile(st), maxMessage, 0)
	if text == "" && st.ExitCode != 0 && v1.TerminationMessagePolicy(st.Annotations[annotationMessagePolicy]) == v1.TerminationMessageFallbackToLogsOnError {
		text = logEnd(st.LogPath)
	}
	switch {
	case text == "":
		return st.Message
	case st.Message == "":
		return text
	}
	return st.Message + ": " + text
}
