// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package owned

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Open opens a file of a folder that another user may have made: a recording, a folder of
// manifests, an archive. It may be a link; what is not a regular file in the end, as a device or a
// FIFO, is refused, since it might be read for ever; so is a file that is nearly all hole, of which
// a few bytes on disk are terabytes of zeros.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	return regular(f, path)
}

// flags open a file for reading. Opening a FIFO does not wait for a writer.
const flags = os.O_RDONLY | syscall.O_NONBLOCK

// OpenIn opens such a file within a folder. Links that lead out of the folder are errors.
func OpenIn(dir, name string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, flags, 0)
	if err != nil {
		return nil, err
	}
	return regular(f, filepath.Join(dir, name))
}

// regular returns the file if it is regular and not nearly all hole, and closes it otherwise.
func regular(f *os.File, path string) (*os.File, error) {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: is no regular file (%s)", path, info.Mode().Type())
	}
	if err == nil && hollow(info) {
		err = fmt.Errorf("%s: is %d MiB long, and nearly all of it is a hole: copy what it is "+
			"to hold into another file", path, info.Size()>>20)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// hollow reports whether a large file has less than a hundredth of its length on disk. Filesystems
// that compress text leave more than that.
func hollow(info os.FileInfo) bool {
	const large, block = 64 << 20, 512
	stat, known := info.Sys().(*syscall.Stat_t)
	return known && info.Size() > large && stat.Blocks*block < info.Size()/100
}

// ReadFile is os.ReadFile for such a file.
func ReadFile(path string) ([]byte, error) { return readAll(Open(path)) }

// ReadFileIn reads such a file within a folder.
func ReadFileIn(dir, name string) ([]byte, error) { return readAll(OpenIn(dir, name)) }

func readAll(f *os.File, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
