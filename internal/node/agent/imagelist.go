package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// imageList is the node's images as the runtime last reported them.
type imageList struct {
	mu    sync.Mutex
	known []v1.ContainerImage
}

// Upstream's limits for images in a node's status.
const (
	mostImages     = 50
	mostImageNames = 5
	imagesEvery    = 30 * time.Second
)

func (l *imageList) all() []v1.ContainerImage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known
}

func (l *imageList) set(known []v1.ContainerImage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = known
}

// listImages lists the runtime's images periodically, so that the node's status need not wait for
// it.
func (a *Agent) listImages(ctx context.Context) {
	for {
		asked := time.Now()
		question, cancel := context.WithTimeout(ctx, imagesEvery)
		images, err := a.runtime.Images.ListImages(question, nil)
		cancel()
		if err == nil {
			present := map[string]bool{}
			for _, image := range images {
				present[image.Id] = true
			}
			a.pulls.Prune(present, asked)
			first := a.images.all() == nil
			a.images.set(largest(images))
			if first {
				a.reportNode()
			}
		} else if ctx.Err() == nil {
			klog.V(2).InfoS("Cannot list the images in the container runtime; it is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(imagesEvery):
		}
	}
}

// largest returns the largest images, for the node's status.
func largest(images []*runtimeapi.Image) []v1.ContainerImage {
	out := []v1.ContainerImage{}
	for _, image := range images {
		names := append(slices.Clone(image.RepoDigests), image.RepoTags...)
		out = append(out, v1.ContainerImage{Names: names[:min(len(names), mostImageNames)], SizeBytes: int64(image.Size)})
	}
	slices.SortFunc(out, func(x, y v1.ContainerImage) int {
		if x.SizeBytes != y.SizeBytes {
			return int(min(max(y.SizeBytes-x.SizeBytes, -1), 1))
		}
		return slices.Compare(x.Names, y.Names)
	})
	return out[:min(len(out), mostImages)]
}
