package volumes

import (
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Usage is what a volume of a pod takes.
type Usage struct {
	Volume       string
	Used, Inodes int64              // bytes and entries
	Limit        *resource.Quantity // of an emptyDir; nil: none
	InMemory     bool               // counts as memory of the pod, not as its ephemeral storage
}

// Usage measures the pod's volumes, those that the agent made. It walks through them: what has very
// many files takes its time.
func (m *Manager) Usage(pod *v1.Pod) ([]Usage, error) {
	var all []Usage
	used := usedVolumes(pod)
	for _, volume := range pod.Spec.Volumes {
		kind := kindOf(volume)
		if !used[volume.Name] || kind == hostPath || kind == unsupported || validName("volume name", volume.Name) != nil {
			continue
		}
		usage := Usage{Volume: volume.Name, InMemory: kind != emptyDir && kind != configMap}
		if volume.EmptyDir != nil {
			usage.Limit = volume.EmptyDir.SizeLimit
			usage.InMemory = volume.EmptyDir.Medium == v1.StorageMediumMemory
		}
		var err error
		if usage.Used, usage.Inodes, err = measure(m.volumeDir(pod.UID, volume)); err != nil {
			return nil, fmt.Errorf("measuring volume %s: %w", volume.Name, err)
		}
		all = append(all, usage)
	}
	return all, nil
}

// measure sums up the blocks of all that is in a folder, without what is mounted in it. What has
// several names counts once; what goes away meanwhile does not count.
func measure(dir string) (bytes, inodes int64, err error) {
	const block = 512 // of st_blocks, whatever the filesystem's are
	var root unix.Stat_t
	if err := unix.Lstat(dir, &root); err != nil {
		if err == unix.ENOENT {
			return 0, 0, nil
		}
		return 0, 0, err
	}
	seen := map[uint64]bool{}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		var stat unix.Stat_t
		if unix.Lstat(path, &stat) != nil {
			return nil
		}
		if stat.Dev != root.Dev {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if stat.Nlink > 1 && !entry.IsDir() {
			if seen[stat.Ino] {
				return nil
			}
			seen[stat.Ino] = true
		}
		bytes += stat.Blocks * block
		inodes++
		return nil
	})
	return bytes, inodes, err
}
