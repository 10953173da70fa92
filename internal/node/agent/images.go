package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/pulls"
)

// imageOptions are what the images of a node need of it.
type imageOptions struct {
	runtime internalapi.ImageManagerService
	// dir is the agent's own folder: the records are in it, and the docker configuration may be.
	dir    string
	policy pulls.Policy
	secret func(namespace, name string) (*v1.Secret, error)
	// event reports something about a container of a pod; an empty name: about the pod.
	event  func(pod *v1.Pod, container, kind, reason, message string)
	pulled func(took time.Duration, size uint64)
	// listed is called when the images have been listed for the first time.
	listed func()
}

// images are those of the node: containers get them from here, pulled if need be, and the records
// say which pods may use which.
type images struct {
	options imageOptions
	pulls   *pulls.Records

	mu sync.Mutex
	// known is as the runtime last reported them, for the node's status; nil before the first time.
	known []v1.ContainerImage
}

// openImages reads the image pull records, once the runtime can list its images.
func openImages(ctx context.Context, options imageOptions) (*images, error) {
	present := map[string]string{}
	list, err := options.runtime.ListImages(ctx, nil)
	if err != nil {
		klog.InfoS("Cannot list the images in the container runtime; pulls that were cut off stay recorded as such", "err", err)
	}
	for _, image := range list {
		for _, name := range append(slices.Clone(image.RepoTags), image.RepoDigests...) {
			present[name] = image.Id
		}
	}
	records, err := pulls.Open(options.dir, options.policy, present)
	return &images{options: options, pulls: records}, err
}

// Upstream's limits for images in a node's status.
const (
	mostImages     = 50
	mostImageNames = 5
	imagesEvery    = 30 * time.Second
)

// all are the node's images for its status.
func (i *images) all() []v1.ContainerImage {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.known
}

// run lists the runtime's images periodically, so that the node's status need not wait for it.
func (i *images) run(ctx context.Context) {
	for {
		asked := time.Now()
		question, cancel := context.WithTimeout(ctx, imagesEvery)
		list, err := i.options.runtime.ListImages(question, nil)
		cancel()
		if err == nil {
			i.set(list, asked)
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

// set records the images that there were when the runtime was asked.
func (i *images) set(list []*runtimeapi.Image, asked time.Time) {
	present := map[string]bool{}
	for _, image := range list {
		present[image.Id] = true
	}
	i.pulls.Prune(present, asked)
	i.mu.Lock()
	first := i.known == nil
	i.known = largest(list)
	i.mu.Unlock()
	if first {
		i.options.listed()
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
