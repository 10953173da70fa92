package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// operations counts the requests to the container runtime, with their durations and failures.
type operations struct {
	total, errors *prometheus.CounterVec
	duration      *prometheus.HistogramVec
}

func newOperations() operations {
	label := []string{"operation_type"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: alpha + help}, label)
	}
	return operations{
		total:  counter("kubelet_runtime_operations_total", "Cumulative number of runtime operations by operation type."),
		errors: counter("kubelet_runtime_operations_errors_total", "Cumulative number of runtime operation errors by operation type."),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Buckets: prometheus.ExponentialBuckets(.005, 2.5, 14),
			Help: alpha + "Duration in seconds of runtime operations. Broken down by operation type.",
		}, label),
	}
}

// done counts an operation that has ended.
func (o operations) done(kind string, began time.Time, err error) {
	o.total.WithLabelValues(kind).Inc()
	o.duration.WithLabelValues(kind).Observe(time.Since(began).Seconds())
	if err != nil {
		o.errors.WithLabelValues(kind).Inc()
	}
}

func counted[T any](o operations, kind string, call func() (T, error)) (T, error) {
	began := time.Now()
	answer, err := call()
	o.done(kind, began, err)
	return answer, err
}

func (o operations) count(kind string, call func() error) error {
	began := time.Now()
	err := call()
	o.done(kind, began, err)
	return err
}

// Runtime wraps a runtime to count its requests, by upstream's names of operations.
func (k *Kubelet) Runtime(r internalapi.RuntimeService) internalapi.RuntimeService {
	return countedRuntime{r, k.operations, k.happened}
}

// Images does the same for images.
func (k *Kubelet) Images(i internalapi.ImageManagerService) internalapi.ImageManagerService {
	return countedImages{i, k.operations}
}

type countedRuntime struct {
	internalapi.RuntimeService
	operations
	happened happened
}

func (r countedRuntime) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	began := time.Now()
	id, err := counted(r.operations, "run_podsandbox", func() (string, error) { return r.RuntimeService.RunPodSandbox(ctx, config, handler) })
	r.happened.sandbox.WithLabelValues(handler).Observe(time.Since(began).Seconds())
	if err != nil {
		r.happened.sandboxErrors.WithLabelValues(handler).Inc()
	}
	return id, err
}

func (r countedRuntime) StopPodSandbox(ctx context.Context, id string) error {
	return r.count("stop_podsandbox", func() error { return r.RuntimeService.StopPodSandbox(ctx, id) })
}

func (r countedRuntime) RemovePodSandbox(ctx context.Context, id string) error {
	return r.count("remove_podsandbox", func() error { return r.RuntimeService.RemovePodSandbox(ctx, id) })
}

func (r countedRuntime) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return counted(r.operations, "podsandbox_status", func() (*runtimeapi.PodSandboxStatusResponse, error) {
		return r.RuntimeService.PodSandboxStatus(ctx, id, verbose)
	})
}

func (r countedRuntime) ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return counted(r.operations, "list_podsandbox", func() ([]*runtimeapi.PodSandbox, error) {
		return r.RuntimeService.ListPodSandbox(ctx, filter)
	})
}

func (r countedRuntime) CreateContainer(ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig, of *runtimeapi.PodSandboxConfig) (string, error) {
	return counted(r.operations, "create_container", func() (string, error) {
		return r.RuntimeService.CreateContainer(ctx, sandbox, config, of)
	})
}

func (r countedRuntime) StartContainer(ctx context.Context, id string) error {
	return r.count("start_container", func() error { return r.RuntimeService.StartContainer(ctx, id) })
}

func (r countedRuntime) StopContainer(ctx context.Context, id string, seconds int64) error {
	return r.count("stop_container", func() error { return r.RuntimeService.StopContainer(ctx, id, seconds) })
}

func (r countedRuntime) RemoveContainer(ctx context.Context, id string) error {
	return r.count("remove_container", func() error { return r.RuntimeService.RemoveContainer(ctx, id) })
}

func (r countedRuntime) ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return counted(r.operations, "list_containers", func() ([]*runtimeapi.Container, error) {
		return r.RuntimeService.ListContainers(ctx, filter)
	})
}

func (r countedRuntime) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	return counted(r.operations, "container_status", func() (*runtimeapi.ContainerStatusResponse, error) {
		return r.RuntimeService.ContainerStatus(ctx, id, verbose)
	})
}

func (r countedRuntime) UpdateContainerResources(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error {
	return r.count("update_container", func() error { return r.RuntimeService.UpdateContainerResources(ctx, id, resources) })
}

func (r countedRuntime) ExecSync(ctx context.Context, id string, command []string, patience time.Duration) (out, errors []byte, err error) {
	err = r.count("exec_sync", func() error {
		out, errors, err = r.RuntimeService.ExecSync(ctx, id, command, patience)
		return err
	})
	return out, errors, err
}

func (r countedRuntime) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	return counted(r.operations, "status", func() (*runtimeapi.StatusResponse, error) { return r.RuntimeService.Status(ctx, verbose) })
}

type countedImages struct {
	internalapi.ImageManagerService
	operations
}

func (i countedImages) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	return counted(i.operations, "pull_image", func() (string, error) {
		return i.ImageManagerService.PullImage(ctx, image, auth, sandbox)
	})
}

func (i countedImages) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	return counted(i.operations, "image_status", func() (*runtimeapi.ImageStatusResponse, error) {
		return i.ImageManagerService.ImageStatus(ctx, image, verbose)
	})
}

func (i countedImages) ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return counted(i.operations, "list_images", func() ([]*runtimeapi.Image, error) {
		return i.ImageManagerService.ListImages(ctx, filter)
	})
}

func (i countedImages) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	return i.count("remove_image", func() error { return i.ImageManagerService.RemoveImage(ctx, image) })
}
