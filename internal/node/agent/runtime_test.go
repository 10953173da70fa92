package agent

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// memoryRuntime is a container runtime whose containers run until they are stopped. While it hangs,
// no question is answered.
type memoryRuntime struct {
	internalapi.RuntimeService // what the tests do not need

	mu         sync.Mutex
	hang       chan struct{} // closed when it answers again; nil while it does
	sandboxes  map[string]*runtimeapi.PodSandboxStatus
	containers map[string]*memoryContainer
	made       int
	stopped    int32                         // the exit code of what is stopped
	stops      []time.Time                   // when something was to be stopped
	cannotStop error                         // what that answers
	configs    []*runtimeapi.ContainerConfig // of all containers, in the order in which they were made
	updates    []containerUpdate
	features   *runtimeapi.RuntimeFeatures
	handlers   []*runtimeapi.RuntimeHandler
}

type memoryContainer struct {
	status  *runtimeapi.ContainerStatus
	sandbox string
}

type containerUpdate struct {
	container string
	linux     *runtimeapi.LinuxContainerResources
}

func newMemoryRuntime() *memoryRuntime {
	return &memoryRuntime{sandboxes: map[string]*runtimeapi.PodSandboxStatus{}, containers: map[string]*memoryContainer{}, stopped: 143}
}

// asked is what every question begins with; the runtime is locked then.
func (r *memoryRuntime) asked(ctx context.Context) error {
	for {
		r.mu.Lock()
		hang := r.hang
		if hang == nil {
			return nil
		}
		r.mu.Unlock()
		select {
		case <-hang:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// stall has it hang until the function that is returned is called.
func (r *memoryRuntime) stall() (goOn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hang := make(chan struct{})
	r.hang = hang
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hang = nil
		close(hang)
	}
}

func (r *memoryRuntime) Close(context.Context) error { return nil }

func (r *memoryRuntime) Status(ctx context.Context, _ bool) (*runtimeapi.StatusResponse, error) {
	if err := r.asked(ctx); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	return &runtimeapi.StatusResponse{Features: r.features, RuntimeHandlers: r.handlers, Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}}, nil
}

func (r *memoryRuntime) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, _ string) (string, error) {
	if err := r.asked(ctx); err != nil {
		return "", err
	}
	defer r.mu.Unlock()
	r.made++
	id := fmt.Sprint("sandbox-", r.made)
	r.sandboxes[id] = &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: config.Metadata, Labels: config.Labels, Annotations: config.Annotations, CreatedAt: time.Now().UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
	}
	return id, nil
}

func (r *memoryRuntime) StopPodSandbox(ctx context.Context, id string) error {
	if err := r.asked(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return nil
}

func (r *memoryRuntime) RemovePodSandbox(ctx context.Context, id string) error {
	if err := r.asked(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	delete(r.sandboxes, id)
	return nil
}

func (r *memoryRuntime) PodSandboxStatus(ctx context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	if err := r.asked(ctx); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		return &runtimeapi.PodSandboxStatusResponse{Status: s}, nil
	}
	return nil, status.Error(codes.NotFound, id)
}

func fits(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

func (r *memoryRuntime) ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) (out []*runtimeapi.PodSandbox, err error) {
	if err := r.asked(ctx); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	for _, s := range r.sandboxes {
		if fits(filter.GetLabelSelector(), s.Labels) {
			out = append(out, &runtimeapi.PodSandbox{
				Id: s.Id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations,
			})
		}
	}
	return out, nil
}

func (r *memoryRuntime) CreateContainer(ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	if err := r.asked(ctx); err != nil {
		return "", err
	}
	defer r.mu.Unlock()
	r.made++
	r.configs = append(r.configs, config)
	id := fmt.Sprint("container-", r.made)
	r.containers[id] = &memoryContainer{sandbox: sandbox, status: &runtimeapi.ContainerStatus{
		Id: id, Metadata: config.Metadata, Image: config.Image, Labels: config.Labels, Annotations: config.Annotations,
		CreatedAt: time.Now().UnixNano(), State: runtimeapi.ContainerState_CONTAINER_CREATED,
		Resources: &runtimeapi.ContainerResources{Linux: config.GetLinux().GetResources()},
	}}
	return id, nil
}

// change a container.
func (r *memoryRuntime) change(ctx context.Context, id string, change func(*runtimeapi.ContainerStatus)) error {
	if err := r.asked(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return status.Error(codes.NotFound, id)
	}
	change(c.status)
	return nil
}

func (r *memoryRuntime) StartContainer(ctx context.Context, id string) error {
	return r.change(ctx, id, func(s *runtimeapi.ContainerStatus) {
		s.State, s.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	})
}

func (r *memoryRuntime) StopContainer(ctx context.Context, id string, _ int64) error {
	r.mu.Lock()
	r.stops = append(r.stops, time.Now())
	err := r.cannotStop
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.change(ctx, id, func(s *runtimeapi.ContainerStatus) {
		s.State, s.FinishedAt, s.ExitCode = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now().UnixNano(), r.stopped
	})
}

func (r *memoryRuntime) RemoveContainer(ctx context.Context, id string) error {
	if err := r.asked(ctx); err != nil {
		return err
	}
	defer r.mu.Unlock()
	delete(r.containers, id)
	return nil
}

func (r *memoryRuntime) ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) (out []*runtimeapi.Container, err error) {
	if err := r.asked(ctx); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if fits(filter.GetLabelSelector(), c.status.Labels) {
			out = append(out, &runtimeapi.Container{
				Id: c.status.Id, PodSandboxId: c.sandbox, Metadata: c.status.Metadata, State: c.status.State, Labels: c.status.Labels,
				CreatedAt: c.status.CreatedAt,
			})
		}
	}
	return out, nil
}

func (r *memoryRuntime) ContainerStatus(ctx context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	if err := r.asked(ctx); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		copied := &runtimeapi.ContainerStatus{
			Id: c.status.Id, Metadata: c.status.Metadata, State: c.status.State, CreatedAt: c.status.CreatedAt, StartedAt: c.status.StartedAt,
			FinishedAt: c.status.FinishedAt, ExitCode: c.status.ExitCode, Image: c.status.Image, Labels: maps.Clone(c.status.Labels),
			Annotations: maps.Clone(c.status.Annotations), Resources: c.status.Resources,
		}
		return &runtimeapi.ContainerStatusResponse{Status: copied}, nil
	}
	return nil, status.Error(codes.NotFound, id)
}

func (r *memoryRuntime) UpdateContainerResources(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error {
	return r.change(ctx, id, func(s *runtimeapi.ContainerStatus) {
		r.updates = append(r.updates, containerUpdate{s.GetMetadata().GetName(), resources.GetLinux()})
		s.Resources = resources
	})
}

// memoryImages has every image that is asked for, as it says itself; pull decides what pulls
// answer, and pulled what becomes of an image and its answer.
type memoryImages struct {
	internalapi.ImageManagerService
	pull   func(*runtimeapi.ImageSpec, *runtimeapi.AuthConfig) error
	pulled func() error

	mu     sync.Mutex
	images map[string]bool
}

func (m *memoryImages) Close(context.Context) error { return nil }

func (m *memoryImages) ImageStatus(_ context.Context, spec *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.images != nil && !m.images[spec.Image] {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: spec.Image, Size: 1}}, nil
}

func (m *memoryImages) PullImage(_ context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pull != nil {
		if err := m.pull(spec, auth); err != nil {
			return "", err
		}
	}
	if m.images != nil {
		m.images[spec.Image] = true
	}
	if m.pulled != nil {
		return spec.Image, m.pulled()
	}
	return spec.Image, nil
}

func (m *memoryImages) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return nil, nil
}

func (r *memoryRuntime) UpdatePodSandboxResources(context.Context, *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return nil, status.Error(codes.Unimplemented, "unknown method UpdatePodSandboxResources")
}
