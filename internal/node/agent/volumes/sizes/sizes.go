// Package sizes measures what folders take on disk.
package sizes

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Usage is what a volume of a pod takes.
type Usage struct {
	Volume       string
	Used, Inodes int64              // bytes and entries
	Limit        *resource.Quantity // of an emptyDir; nil: none
	InMemory     bool               // counts as memory of the pod, not as its ephemeral storage
	// Own is the filesystem of a volume that is on one of its own; nil: it is on the node's.
	Own *Filesystem
	// Claim is the name of the claim that the volume is by; empty: by none.
	Claim string
}

// Filesystem is one of a volume.
type Filesystem struct{ Bytes, Inodes Room }

// Room is that of a filesystem.
type Room struct{ Total, Used, Available int64 }

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
