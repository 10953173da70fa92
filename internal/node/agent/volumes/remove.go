package volumes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// removeTree removes a folder and its content, on one filesystem: what is mounted in it, also from
// another folder of the same filesystem, is left alone with its content, and is an error. Links are
// removed, not followed. An error does not keep the rest from being removed.
func removeTree(dir string) error {
	parent, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(dir), Err: err}
	}
	defer unix.Close(parent)
	return removeAt(parent, filepath.Base(dir), dir)
}

// removeAt removes an entry of an open folder. path is for errors.
func removeAt(parent int, name, path string) error {
	failed := unix.Unlinkat(parent, name, 0)
	if failed == nil || errors.Is(failed, unix.ENOENT) {
		return nil
	}
	fd, err := openHere(parent, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP): // it is no folder
		return &os.PathError{Op: "unlink", Path: path, Err: failed}
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%s is still mounted", path)
	case err != nil:
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	folder := os.NewFile(uintptr(fd), path)
	defer folder.Close()
	for {
		removed, err := empty(folder, fd)
		if err != nil {
			return err
		}
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.ENOTEMPTY) || removed == 0:
			return &os.PathError{Op: "rmdir", Path: path, Err: err}
		}
		if _, err := folder.Seek(0, io.SeekStart); err != nil { // some filesystems skip entries while others go
			return err
		}
	}
}

// empty removes what is in an open folder, and returns of how much it knew.
func empty(folder *os.File, fd int) (count int, failed error) {
	for {
		names, err := folder.Readdirnames(1024)
		for _, name := range names {
			if err := removeAt(fd, name, filepath.Join(folder.Name(), name)); err != nil && failed == nil {
				failed = err
			}
		}
		count += len(names)
		if errors.Is(err, io.EOF) {
			return count, failed
		}
		if err != nil {
			return count, err
		}
	}
}

// openHere opens a folder in an open folder, unless something is mounted on it: EXDEV.
func openHere(parent int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	for {
		fd, err := unix.Openat2(parent, name, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM):
			return fd, err
		}
		// The kernel is older than 5.6, or a sandbox does not know the call: that it is another
		// filesystem is seen all the same.
		if fd, err = unix.Openat(parent, name, flags, 0); err != nil {
			return fd, err
		}
		var here, there unix.Stat_t
		if err = errors.Join(unix.Fstat(parent, &here), unix.Fstat(fd, &there)); err == nil && here.Dev != there.Dev {
			err = unix.EXDEV
		}
		if err != nil {
			unix.Close(fd)
		}
		return fd, err
	}
}
