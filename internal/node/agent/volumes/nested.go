package volumes

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// nestedMountPoints creates, in a volume that containers cannot write to, the folders for other
// mounts: the runtime could not create them.
func nestedMountPoints(pod *v1.Pod, volume, dir string) error {
	for _, c := range containersOf(pod) {
		for _, mount := range c.VolumeMounts {
			if mount.Name != volume {
				continue
			}
			outer := filepath.Clean(mount.MountPath)
			if strings.HasPrefix(outer, "../") {
				return fmt.Errorf("invalid container mount point %v", outer)
			}
			for _, inner := range directlyBelow(outer, c.VolumeMounts) {
				if err := os.MkdirAll(filepath.Join(dir, inner), 0o755); err != nil {
					return fmt.Errorf("unable to create nested volume mountpoints: %w", err)
				}
			}
		}
	}
	return nil
}

// directlyBelow returns the mounts in a folder by their path from there, without those that are in
// another one of them.
func directlyBelow(outer string, mounts []v1.VolumeMount) []string {
	var below []string
	for _, mount := range mounts {
		if inner, ok := strings.CutPrefix(filepath.Clean(mount.MountPath), outer+"/"); ok {
			below = append(below, inner)
		}
	}
	slices.SortFunc(below, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
	var direct []string
	for _, inner := range below {
		if !slices.ContainsFunc(direct, func(other string) bool { return strings.HasPrefix(inner, other+"/") }) {
			direct = append(direct, inner)
		}
	}
	return direct
}
