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

// imageList is what images the node has, as the runtime said last.
type imageList struct {
	mu    sync.Mutex
	known []v1.ContainerImage
}

// Limits of upstream's for the images in a node's status.
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

// listImages asks the runtime for its images now and then, aside: the node's status does not wait
// for the answer.
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

// largest of the images, as a node's status has them.
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
