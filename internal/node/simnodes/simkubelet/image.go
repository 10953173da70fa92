// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// missing lists substrings of the names of images that count as nonexistent. Users choose such
// names to try the effect of a missing image.
var missing = []string{"non-existent", "nonexistent", "does-not-exist", "doesnt-exist"}

// isPullable returns false for an image declared nonexistent by the last part of its name, by the
// tag 404, or by a registry named invalid. Any other image counts as present on every node, without
// a pull.
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
	// The status has only one state, so keep the end of the last run separately.
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
