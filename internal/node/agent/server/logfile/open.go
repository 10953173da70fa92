package logfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrRefused is the error for a path that is not a regular file beneath the folder of logs, or that
// contains a symbolic link. A pod that can write there could otherwise show any file of the machine
// as its log.
var ErrRefused = errors.New("not a regular file beneath the folder of logs")

// place is a log file identified by its open folder: the file is renamed while it is being read.
type place struct {
	folder *os.File
	name   string
}

// locate opens the folder of a log, without following links below root.
func locate(root, path string) (*place, error) {
	below, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(below) || below == "." || strings.ContainsRune(path, 0) {
		return nil, fmt.Errorf("log %q: %w", path, ErrRefused)
	}
	folder, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(below, string(filepath.Separator))
	for _, part := range parts[:len(parts)-1] {
		next, err := openIn(folder, part, unix.O_DIRECTORY)
		_ = folder.Close()
		if err != nil {
			return nil, err
		}
		folder = next
	}
	return &place{folder: folder, name: parts[len(parts)-1]}, nil
}

func (p *place) close() { _ = p.folder.Close() }

// open opens the file that currently has the log's name. A pipe is rejected, without blocking.
func (p *place) open() (*os.File, error) {
	f, err := openIn(p.folder, p.name, unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, fmt.Errorf("log %q: %w", f.Name(), ErrRefused)
	}
	return f, nil
}

// replaced opens the file with the log's name if it is not f; nil if it is, or there is none.
func (p *place) replaced(f *os.File) *os.File {
	var now unix.Stat_t
	if err := unix.Fstatat(int(p.folder.Fd()), p.name, &now, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil
	}
	var then unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &then); err != nil || (then.Ino == now.Ino && then.Dev == now.Dev) {
		return nil
	}
	next, err := p.open()
	if err != nil {
		return nil
	}
	return next
}

func openIn(folder *os.File, name string, flags int) (*os.File, error) {
	path := filepath.Join(folder.Name(), name)
	fd, err := unix.Openat(int(folder.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("log %q: %w", path, ErrRefused)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
