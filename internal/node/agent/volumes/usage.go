package volumes

import (
	"context"
	"fmt"
	"os"
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

// Usage measures the pod's volumes that the agent created. It walks through them until ctx ends at
// the latest; what was counted by then is returned as a lower bound.
func (m *Manager) Usage(ctx context.Context, pod *v1.Pod) ([]Usage, error) {
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
		if usage.Used, usage.Inodes, err = Measure(ctx, m.volumeDir(pod.UID, volume)); err != nil {
			return nil, fmt.Errorf("measuring volume %s: %w", volume.Name, err)
		}
		all = append(all, usage)
	}
	return all, nil
}

// chunk is how many entries of a folder are read at once: a folder of a million files is not held
// in memory as a whole.
const chunk = 1024

// Measure sums up the blocks of everything in a folder, without what is mounted in it. A file with
// several names counts once; what disappears meanwhile does not count. If ctx ends, the sums are
// partial.
func Measure(ctx context.Context, dir string) (bytes, inodes int64, err error) {
	var root unix.Stat_t
	switch err := unix.Lstat(dir, &root); {
	case err == unix.ENOENT:
		return 0, 0, nil
	case err != nil:
		return 0, 0, err
	}
	w := walk{device: root.Dev, seen: map[uint64]bool{}}
	w.count(&root)
	for folders := []string{dir}; len(folders) > 0 && ctx.Err() == nil; {
		last := len(folders) - 1
		next := folders[last]
		folders = append(folders[:last], w.folder(ctx, next)...)
	}
	return w.bytes, w.inodes, nil
}

// walk is the sum so far of one filesystem.
type walk struct {
	device        uint64
	seen          map[uint64]bool // inodes that have several names
	bytes, inodes int64
}

// folder adds what is in a folder, and returns the folders in it.
func (w *walk) folder(ctx context.Context, path string) (inside []string) {
	// A link that has taken the folder's place is not followed.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	folder := os.NewFile(uintptr(fd), path)
	defer folder.Close()
	for ctx.Err() == nil {
		names, err := folder.Readdirnames(chunk)
		for _, name := range names {
			var stat unix.Stat_t
			if unix.Fstatat(fd, name, &stat, unix.AT_SYMLINK_NOFOLLOW) != nil || stat.Dev != w.device {
				continue
			}
			if w.count(&stat); stat.Mode&unix.S_IFMT == unix.S_IFDIR {
				inside = append(inside, filepath.Join(path, name))
			}
		}
		if err != nil {
			break
		}
	}
	return inside
}

func (w *walk) count(stat *unix.Stat_t) {
	if stat.Nlink > 1 && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		if w.seen[stat.Ino] {
			return
		}
		w.seen[stat.Ino] = true
	}
	w.bytes += stat.Blocks * 512 // the unit of st_blocks, whatever the filesystem's block size
	w.inodes++
}
