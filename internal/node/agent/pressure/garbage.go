package pressure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// youth protects an image that has just been pulled for a container that has not been created yet;
// it is the kubelet's default.
const youth = 2 * time.Minute

// Runtime is what Garbage asks of the container runtime.
type Runtime interface {
	Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)
	ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	RemoveContainer(ctx context.Context, id string) error
}

// Images is what Garbage asks of the runtime's images.
type Images interface {
	ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
	RemoveImage(context.Context, *runtimeapi.ImageSpec) error
}

// Garbage removes what no pod needs when disk is short: images without containers, and dead
// containers except for the last of each.
type Garbage struct {
	Runtime Runtime
	Images  Images

	mu sync.Mutex
	// since is when each image was first seen.
	since map[string]time.Time
}

// Run keeps track of new images, so that their age is known when it matters.
func (g *Garbage) Run(ctx context.Context) {
	ticker := time.NewTicker(youth / 2)
	defer ticker.Stop()
	for {
		if _, err := g.old(ctx, time.Now()); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Cannot list the runtime's images", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// old returns the images that have been present for a while.
func (g *Garbage) old(ctx context.Context, now time.Time) (old []*runtimeapi.Image, err error) {
	list, err := g.Images.ListImages(ctx, nil)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	known := map[string]time.Time{}
	for _, image := range list {
		known[image.Id] = now
		if since, found := g.since[image.Id]; found {
			known[image.Id] = since
		}
		if now.Sub(known[image.Id]) >= youth {
			old = append(old, image)
		}
	}
	g.since = known
	return old, nil
}

// RemoveImages removes images that no container, running or not, was created from. The sandbox
// image stays.
func (g *Garbage) RemoveImages(ctx context.Context) error {
	old, err := g.old(ctx, time.Now())
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	containers, err := g.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	needed := sets.New(g.sandboxImage(ctx))
	for _, container := range containers {
		needed.Insert(container.ImageRef, container.ImageId, container.GetImage().GetImage())
	}
	var failed []error
	for _, image := range old {
		if image.Pinned || needed.HasAny(append(append([]string{image.Id}, image.RepoTags...), image.RepoDigests...)...) {
			continue
		}
		klog.FromContext(ctx).Info("Removing an image that no container uses", "image", image.RepoTags, "id", image.Id, "bytes", image.Size)
		if err := g.Images.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: image.Id}); err != nil {
			failed = append(failed, fmt.Errorf("remove image %s: %w", image.Id, err))
		}
	}
	return errors.Join(failed...)
}

// sandboxImage reads it from containerd's configuration. Runtimes that pin it do not need this.
func (g *Garbage) sandboxImage(ctx context.Context) string {
	status, err := g.Runtime.Status(ctx, true)
	if err != nil {
		return ""
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if json.Unmarshal([]byte(status.GetInfo()["config"]), &config) != nil {
		return ""
	}
	return config.SandboxImage
}

// RemoveContainers removes dead containers. The last of each stays, for its exit code and its log.
func (g *Garbage) RemoveContainers(ctx context.Context) error {
	containers, err := g.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	type place struct{ sandbox, name string }
	last := map[place]*runtimeapi.Container{}
	at := func(c *runtimeapi.Container) place { return place{c.PodSandboxId, c.GetMetadata().GetName()} }
	for _, container := range containers {
		if newest := last[at(container)]; newest == nil || container.CreatedAt > newest.CreatedAt {
			last[at(container)] = container
		}
	}
	var failed []error
	for _, container := range containers {
		if container.State != runtimeapi.ContainerState_CONTAINER_EXITED || last[at(container)] == container {
			continue
		}
		if err := g.Runtime.RemoveContainer(ctx, container.Id); err != nil {
			failed = append(failed, fmt.Errorf("remove container %s: %w", container.Id, err))
		}
	}
	return errors.Join(failed...)
}
