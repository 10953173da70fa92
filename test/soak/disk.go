// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
)

// diskSize suffices for an hour of etcd, which keeps seven WAL files of 64 MiB, and its database.
const diskSize = 1 << 30

// disk is a separate file system for the control plane's data that can be filled.
type disk struct {
	dir    string
	filled atomic.Bool // whether the disk has ever been filled
	mu     sync.Mutex
	file   *os.File
}

// newDisk mounts the disk. It returns an error if this machine does not permit mounts.
func newDisk(dir string) (*disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskSize)); err != nil {
		return nil, fmt.Errorf("no file system can be mounted here (tmpfs: %w)", err)
	}
	return &disk{dir: dir}, nil
}

// fillDisk takes all free space.
func (d *disk) fillDisk() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file != nil {
		return false
	}
	file, err := os.Create(filepath.Join(d.dir, "filler"))
	if err != nil {
		return false
	}
	d.file = file
	d.filled.Store(true)
	zeros := make([]byte, 64<<10)
	for size := int64(64 << 20); size >= int64(len(zeros)); {
		info, err := file.Stat()
		if err != nil {
			break
		}
		if err := syscall.Fallocate(int(file.Fd()), 0, info.Size(), size); err != nil {
			size /= 2
		}
	}
	for err == nil { // write until the disk is full
		_, err = file.WriteAt(zeros, fileSize(file))
	}
	return true
}

func fileSize(f *os.File) int64 {
	if info, err := f.Stat(); err == nil {
		return info.Size()
	}
	return 0
}

func (d *disk) freeDisk() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file == nil {
		return
	}
	d.file.Close()
	os.Remove(d.file.Name())
	d.file = nil
}

// unmountDisk unmounts the disk and removes it completely.
func (d *disk) unmountDisk() error {
	d.freeDisk()
	return errors.Join(syscall.Unmount(d.dir, 0), os.Remove(d.dir))
}
