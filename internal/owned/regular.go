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

// Open opens a file in a folder that another user may have created, such as a recording, a folder
// of manifests or an archive. It follows links. It refuses files that are not regular, such as
// devices and FIFOs, because they might be read forever. It also refuses sparse files that are
// nearly all hole, because a few bytes on disk may represent terabytes of zeros.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	return regular(f, path)
}

// flags are the flags for opening a file for reading. O_NONBLOCK keeps the opening of a FIFO from
// waiting for a writer.
const flags = os.O_RDONLY | syscall.O_NONBLOCK

// OpenIn is Open for a file within a folder. A link that leads out of the folder is an error.
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

// regular returns the file if it is regular and not nearly all hole. Otherwise it closes the file.
func regular(f *os.File, path string) (*os.File, error) {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: is not a regular file (%s)", path, info.Mode().Type())
	}
	if err == nil && hollow(info) {
		err = fmt.Errorf("%s: is %d MiB long, and sparse: copy its content to another file", path, info.Size()>>20)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// hollow reports whether a large file has less than a hundredth of its length on disk. A filesystem
// that compresses text uses more than that.
func hollow(info os.FileInfo) bool {
	const large, block = 64 << 20, 512
	stat, known := info.Sys().(*syscall.Stat_t)
	return known && info.Size() > large && stat.Blocks*block < info.Size()/100
}

// ReadFile is like os.ReadFile, but opens the file with Open.
func ReadFile(path string) ([]byte, error) { return readAll(Open(path)) }

// ReadFileIn is like os.ReadFile, but opens the file with OpenIn.
func ReadFileIn(dir, name string) ([]byte, error) { return readAll(OpenIn(dir, name)) }

func readAll(f *os.File, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
