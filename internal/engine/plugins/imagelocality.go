// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// ImageLocality prefers nodes that already have the pod's images. It sees only the images reported
// by the kubelet, by default at most the 50 largest.
type ImageLocality struct{}

// The range of image sizes that count, per container or image volume: a smaller image is pulled
// quickly, and beyond the ceiling a larger size makes no difference. Both bounds are upstream's,
// derived from image sizes on Docker Hub.
const (
	imageFloor   = 23 << 20
	imageCeiling = 1000 << 20
)

// Name implements Scorer.
func (ImageLocality) Name() string { return "ImageLocality" }

// Scale implements [FixedScorer].
func (ImageLocality) Scale() Scale { return AsIs }

// Score implements Scorer. An image absent from all nodes does not count; an image present on all
// nodes counts fully, but adds the same amount to all nodes.
func (ImageLocality) Score(c *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	spec := p.Spec()
	// Both maps are keyed by complete image name. Two containers with the same image use it twice.
	worth := map[string]int64{} // worth of an image, per use by the pod
	uses := map[string]int64{}
	eachImage(c, spec, func(_, name string, state *cluster.ImageState) {
		worth[name] = imageWorth(state, c.Len())
		uses[name]++
	})
	users := imageUsers(spec)
	return Scoring{Node: func(n *cluster.Node) (int64, error) {
		var sum int64
		for name, times := range uses {
			if hasImage(n.Images, name) {
				sum = min(sum+times*worth[name], imageCeiling*int64(users)) // no credit beyond the ceiling
			}
		}
		return imageScore(sum, users), nil
	}}
}

// eachImage calls use for each use of an image present on a node, with the image in the spec and
// its complete name. The order follows the spec, so it is equal for all pods that share the spec.
func eachImage(c *cluster.Cluster, spec *cluster.Spec, use func(image, name string, state *cluster.ImageState)) {
	find := func(image string) {
		name := completeImage(image)
		if state := c.Image(name); state != nil {
			use(image, name, state)
		}
	}
	for i := range spec.InitContainers {
		find(spec.InitContainers[i].Image)
	}
	for i := range spec.Containers {
		find(spec.Containers[i].Image)
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			find(image.Reference)
		}
	}
}

// imageWorth is an image's size, scaled by the share of all nodes with the image, so that pods are
// not drawn to the single node that happened to pull the image first. The worth is capped,
// regardless of the size reported by nodes.
func imageWorth(state *cluster.ImageState, nodes int) int64 {
	share := float64(state.Nodes) / float64(nodes)
	return int64(max(0, min(float64(state.Size)*share, 1<<45)))
}

// imageUsers counts the users of images: containers and image volumes.
func imageUsers(spec *cluster.Spec) int {
	users := len(spec.InitContainers) + len(spec.Containers)
	for i := range spec.Volumes {
		if spec.Volumes[i].Image != nil {
			users++
		}
	}
	return users
}

// imageScore scales a sum of sizes between the floor and the ceiling to 0..MaxScore: for one
// container, 500 MiB present on all nodes give 100*(500-23)/(1000-23) = 48.
func imageScore(sum int64, users int) int64 {
	ceiling := int64(imageCeiling) * int64(users)
	switch {
	case sum < imageFloor:
		sum = imageFloor
	case sum > ceiling:
		sum = ceiling
	}
	return MaxScore * (sum - imageFloor) / (ceiling - imageFloor)
}

// hasImage reports whether one of the node's images has the name. An image may have several: tags
// and digests.
func hasImage(set *cluster.ImageSet, name string) bool {
	return slices.ContainsFunc(set.Images, func(i v1.ContainerImage) bool { return slices.Contains(i.Names, name) })
}

// completeImage adds the default tag to a name without a tag, and does not normalise names further.
// A colon before the last slash belongs to a registry's port:
//
//	localhost:5000/app    ->  localhost:5000/app:latest
//	nginx@sha256:0123...  ->  unchanged
func completeImage(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}

// ScoreKey encodes the inputs of the pod's image scores: equal encodings mean equal scores. It is
// empty if no node can have a score above 0, because the images on nodes are too small or too few.
func (ImageLocality) ScoreKey(c *cluster.Cluster, p *cluster.Pod) string {
	spec, sum := p.Spec(), int64(0)
	eachImage(c, spec, func(_, _ string, state *cluster.ImageState) { sum += imageWorth(state, c.Len()) })
	users := imageUsers(spec)
	// The sum over all images is the maximum for any node.
	if sum <= imageFloor || imageScore(sum, users) == 0 {
		return ""
	}

	var b strings.Builder
	fmt.Fprintf(&b, "%d ", users)
	eachImage(c, spec, func(image, _ string, state *cluster.ImageState) {
		fmt.Fprintf(&b, "%s=%d ", image, imageWorth(state, c.Len()))
	})
	return b.String()
}
