package cri

import (
	"context"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// answers is a runtime that answers each question with what it was given.
type answers struct {
	internalapi.RuntimeService
	sandbox   *runtimeapi.PodSandboxStatusResponse
	container *runtimeapi.ContainerStatusResponse
	status    *runtimeapi.StatusResponse
}

func (a answers) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return a.status, nil
}

func (a answers) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	st := a.sandbox.GetStatus()
	return []*runtimeapi.PodSandbox{{Id: st.GetId(), Metadata: st.GetMetadata(), Labels: st.GetLabels(), Annotations: st.GetAnnotations()}}, nil
}

func (a answers) PodSandboxStatus(context.Context, string, bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return a.sandbox, nil
}

func (a answers) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	st := a.container.GetStatus()
	return []*runtimeapi.Container{{Id: st.GetId(), Metadata: st.GetMetadata(), Labels: st.GetLabels(), State: st.GetState()}}, nil
}

func (a answers) ContainerStatus(context.Context, string, bool) (*runtimeapi.ContainerStatusResponse, error) {
	return a.container, nil
}

// Where the runtime tells as whom a container runs, its status does.
func TestUserOfAContainer(t *testing.T) {
	a := answers{sandbox: &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: "s"}}}
	for _, user := range []*runtimeapi.ContainerUser{nil, {}, {Linux: &runtimeapi.LinuxContainerUser{Uid: 1000, Gid: 3000, SupplementalGroups: []int64{3000, 50000}}}} {
		a.container = &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
			Id: "c1", State: runtimeapi.ContainerState_CONTAINER_RUNNING, Labels: map[string]string{LabelContainerName: "c"}, User: user,
		}}
		seen, err := (&Runtime{Runtime: a}).Seen(t.Context(), "u")
		if err != nil {
			t.Fatal(err)
		}
		pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "c"}}}}
		out := lifecycle.Decide(lifecycle.Input{Pod: pod, Seen: seen, Memory: &lifecycle.Memory{}, Now: time.Now()})
		var want *v1.ContainerUser
		if user.GetLinux() != nil {
			want = &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: 1000, GID: 3000, SupplementalGroups: []int64{3000, 50000}}}
		}
		if got := out.Status.ContainerStatuses[0].User; !reflect.DeepEqual(got, want) {
			t.Errorf("of %v: %v", user, got)
		}
	}
}

// Whatever a runtime answers, empty answers among them: nothing panics, and what is decided from it
// is a status.
func FuzzAnswers(f *testing.F) {
	encode := func(m proto.Message) []byte {
		text, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		return text
	}
	container := &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id: "c1", Metadata: &runtimeapi.ContainerMetadata{Name: "c", Attempt: 3}, State: runtimeapi.ContainerState_CONTAINER_RUNNING,
		Labels:      map[string]string{LabelContainerName: "c"},
		Annotations: map[string]string{annotationRestartCount: "-1", annotationResources: `{"requests":{"cpu":"1"}}`, annotationHash: "x"},
	}}
	sandbox := &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: "s", Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1", AdditionalIps: []*runtimeapi.PodIP{{Ip: "fd00::1"}}},
	}}
	state := &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: "RuntimeReady"}}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{}}}
	f.Add([]byte(nil), []byte(nil), []byte(nil))
	f.Add(encode(container), encode(sandbox), encode(state))
	container.Status.State, container.Status.FinishedAt, container.Status.ExitCode = runtimeapi.ContainerState_CONTAINER_EXITED, -1, 137
	f.Add(encode(container), encode(sandbox), []byte(nil))
	f.Fuzz(func(t *testing.T, c, s, st []byte) {
		a := answers{sandbox: &runtimeapi.PodSandboxStatusResponse{}, container: &runtimeapi.ContainerStatusResponse{}, status: &runtimeapi.StatusResponse{}}
		if proto.Unmarshal(c, a.container) != nil || proto.Unmarshal(s, a.sandbox) != nil || proto.Unmarshal(st, a.status) != nil {
			return
		}
		if status := a.container.GetStatus(); status != nil {
			status.LogPath, status.Mounts = "", nil // this machine's files are not for it to name
		}
		r := &Runtime{Runtime: a}
		ctx := t.Context()
		if _, err := r.State(ctx); err != nil {
			t.Error(err)
		}
		if _, err := r.Glances(ctx); err != nil {
			t.Error(err)
		}
		seen, err := r.Seen(ctx, "u")
		if empty := a.sandbox.Status == nil || a.container.Status == nil; (err != nil) != empty {
			t.Fatal(err)
		} else if empty {
			return
		}
		pod := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "c"}}}}
		out := lifecycle.Decide(lifecycle.Input{Pod: pod, Seen: seen, Memory: &lifecycle.Memory{}, Now: time.Now()})
		if len(out.Status.ContainerStatuses) != 1 || out.Status.Phase == "" {
			t.Errorf("status: %+v", out.Status)
		}
	})
}
