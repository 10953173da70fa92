package kubelet

import (
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// missing are parts of names that no existing image has: a user who writes one wants to see what
// happens if the image is missing.
var missing = []string{"non-existent", "nonexistent", "does-not-exist", "doesnt-exist"}

// isPullable is false for an image that says that it does not exist: in the last part of its name,
// by the tag 404, or by a registry called invalid. Any other image counts as present on every node,
// and nothing is pulled.
func isPullable(image string) bool {
	image, _, _ = strings.Cut(image, "@")
	registry, rest, qualified := strings.Cut(image, "/")
	if !qualified {
		registry, rest = "", image
	}
	if registry == "invalid" || strings.HasPrefix(registry, "invalid.") || strings.HasSuffix(registry, ".invalid") {
		return false
	}
	name := path.Base(rest)
	_, tag, _ := strings.Cut(name, ":")
	return tag != "404" && !slices.ContainsFunc(missing, func(word string) bool { return strings.Contains(name, word) })
}

// pullImage reports whether the container's image can be pulled. If not, the container waits in
// ImagePullBackOff.
func (p *play) pullImage(c *v1.Container, cs *v1.ContainerStatus) bool {
	if isPullable(c.Image) {
		return true
	}
	// The status has one state: how the last run ended is kept beside it.
	if ended := cs.State.Terminated; ended != nil {
		cs.LastTerminationState.Terminated = ended
	}
	cs.Image, cs.ImageID = c.Image, ""
	cs.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{
		Reason:  "ImagePullBackOff",
		Message: fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s: not found", c.Image, c.Image),
	}}
	return false
}
