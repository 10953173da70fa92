package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

func (m *Manager) setUpEmptyDir(pod *v1.Pod, volume v1.Volume, dir string) error {
	source := volume.EmptyDir
	if source == nil {
		source = &v1.EmptyDirVolumeSource{}
	}
	switch source.Medium {
	case v1.StorageMediumDefault:
		return makeShared(dir, groupOf(pod))
	case v1.StorageMediumMemory:
		return m.makeInMemory(dir, pod, source.SizeLimit)
	}
	return fmt.Errorf("unknown storage medium %q", source.Medium)
}

// folderForFiles creates the folder of a volume of files. All except for configMaps are kept in
// memory: a secret or a token never gets to a disk.
func (m *Manager) folderForFiles(pod *v1.Pod, dir string, kind kind) error {
	if kind == configMap {
		return makeShared(dir, nil)
	}
	return m.makeInMemory(dir, pod, nil)
}

// makeShared creates a folder that every user can write to. It gets its name only when it is
// complete: so it is never found half done, and what a container has changed in it since is left
// alone.
func makeShared(dir string, group *int64) error {
	if info, err := os.Lstat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", dir)
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	fresh := filepath.Join(filepath.Dir(dir), ".new-"+filepath.Base(dir)) // no volume's name begins with a dot
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Mkdir(fresh, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(fresh, fs.ModePerm); err != nil { // whatever the umask is
		return err
	}
	if err := giveToGroup(fresh, group, false); err != nil {
		return err
	}
	return os.Rename(fresh, dir)
}

// makeInMemory creates a folder in memory, whose content is charged to the containers that write
// it.
func (m *Manager) makeInMemory(dir string, pod *v1.Pod, limit *resource.Quantity) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	mounted, err := isMountPoint(dir)
	if err != nil || mounted {
		return err
	}
	options := "mode=1777"
	if group := groupOf(pod); group != nil {
		options = fmt.Sprintf("mode=3777,gid=%d", *group) // what is written there belongs to the group
	}
	if size := memoryLimit(pod, limit, m.options.Allocatable()); size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	err = unix.Mount("tmpfs", dir, "tmpfs", 0, options+",noswap")
	if errors.Is(err, unix.EINVAL) { // the kernel is older than 6.4
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, options)
	}
	if err != nil {
		return fmt.Errorf("mounting tmpfs: %w", err)
	}
	return nil
}

// isMountPoint reports whether the folder is on another filesystem than its parent. A bind mount of
// the same filesystem is not detected.
func isMountPoint(dir string) (bool, error) {
	var inside, outside unix.Stat_t
	if err := unix.Lstat(dir, &inside); err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	if err := unix.Lstat(filepath.Dir(dir), &outside); err != nil {
		return false, fmt.Errorf("%s: %w", filepath.Dir(dir), err)
	}
	return inside.Dev != outside.Dev, nil
}

// memoryLimit is the maximum size of a volume in memory: the smallest of the node's allocatable
// memory, the pod's limit, and the volume's own. Zero: unknown.
func memoryLimit(pod *v1.Pod, volume *resource.Quantity, allocatable v1.ResourceList) int64 {
	limit := allocatable.Memory().Value()
	if limited(pod) {
		all := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
		limit = smaller(limit, all.Memory().Value())
	}
	if volume != nil {
		limit = smaller(limit, volume.Value())
	}
	return limit
}

// limited reports whether the pod as a whole has a limit on memory: its own, or one for each
// container.
func limited(pod *v1.Pod) bool {
	if resourcehelper.IsPodLevelResourcesSet(pod) && !pod.Spec.Resources.Limits.Memory().IsZero() {
		return true
	}
	for _, c := range append(pod.Spec.InitContainers[:len(pod.Spec.InitContainers):len(pod.Spec.InitContainers)], pod.Spec.Containers...) {
		if c.Resources.Limits.Memory().IsZero() {
			return false
		}
	}
	return true
}

// smaller of two, where zero stands for none.
func smaller(a, b int64) int64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
