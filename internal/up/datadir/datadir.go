// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package datadir manages the data directory of a `berth up` cluster. It ensures that only one
// `berth up` uses it at a time, and that only Berth's own files are deleted or overwritten.
//
//	berth.lock   locked while a `berth up` runs here
//	kubeconfig   credentials for the cluster
//	ui.token     the dashboard's token
//	lock         the control plane's own lock
//	*.log        the logs of the components
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-k8s/berth/internal/owned"
)

// lockName is the name of the lock file, which also marks a directory as Berth's.
const lockName = "berth.lock"

// Dir is a data directory held exclusively by this process. The caller of Open must close it; the
// lock is held until then.
type Dir struct {
	Path string // absolute
	lock *os.File
}

// Open creates the directory, or takes over an existing one. The kernel releases the lock when the
// process ends, however it ends. An error names the directory, the reason, and the remedy.
func Open(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", path, err)
	}
	if err := mayUse(abs); err != nil {
		return nil, fmt.Errorf("data directory %s: %w: name another with --data-dir", path, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %s: %w: name one that you may write to with --data-dir", path, bare(err))
	}
	// Anyone who can write here controls everything that the cluster's programs trust, including
	// keys.
	if err := owned.Check(abs, owned.Writable); err != nil {
		return nil, fmt.Errorf("data directory %s: %w: name one of your own with --data-dir", path, err)
	}
	lock, err := os.OpenFile(filepath.Join(abs, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w: name one that you may write to with --data-dir", path, bare(err))
	}
	// The file has the ID of the process that holds the lock; see sign.
	if err := insist(lock, ownWait); err != nil {
		owner := make([]byte, 20)
		n, _ := lock.ReadAt(owner, 0)
		lock.Close()
		return nil, fmt.Errorf("data directory %s: another berth up uses it (process %s): stop it or name another with --data-dir",
			path, strings.TrimSpace(string(owner[:n])))
	}
	d := &Dir{Path: abs, lock: lock}
	if err := d.sign(); err != nil {
		d.Close()
		return nil, err
	}
	d.awaitControlPlane()
	return d, nil
}

// A killed process holds its locks until the kernel has freed its resources, which takes a moment
// if it is large. A start right after a kill -9 must not fail because the directory seems to be in
// use.
const (
	ownWait          = 500 * time.Millisecond
	controlPlaneWait = 10 * time.Second
)

// awaitControlPlane waits for the control plane of a killed berth up. If it does not end, the new
// control plane will report the holder of the lock.
func (d *Dir) awaitControlPlane() {
	lock, err := os.OpenFile(d.Join("lock"), os.O_RDWR, 0)
	if err != nil {
		return // no control plane has run in this directory
	}
	defer lock.Close()
	_ = insist(lock, controlPlaneWait)
}

// insist retries a lock for a while. It polls every 20 ms because flock has no timeout.
func insist(lock *os.File, within time.Duration) error {
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// sign writes this process's ID into the lock file, for the error message of another process that
// wants the lock.
func (d *Dir) sign() error {
	if err := d.lock.Truncate(0); err != nil {
		return fmt.Errorf("data directory %s: %w", d.Path, bare(err))
	}
	if _, err := d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("data directory %s: %w", d.Path, bare(err))
	}
	return nil
}

// Clear deletes everything in the directory except for the lock file, which is held.
func (d *Dir) Clear() error {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return fmt.Errorf("data directory %s: %w", d.Path, bare(err))
	}
	for _, e := range entries {
		if e.Name() == lockName {
			continue
		}
		if err := os.RemoveAll(d.Join(e.Name())); err != nil {
			return fmt.Errorf("data directory %s: %w", d.Path, err)
		}
	}
	return nil
}

// Close releases the lock.
func (d *Dir) Close() error { return d.lock.Close() }

// Join returns the path of a file in the directory.
func (d *Dir) Join(name string) string { return filepath.Join(d.Path, name) }

// mayUse returns nil for a directory that is missing, empty, or created by Berth. Any other
// directory contains foreign files, which --fresh must never delete.
func mayUse(path string) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return bare(err)
	case len(entries) == 0:
		return nil
	}
	for _, marker := range []string{lockName, filepath.Join("etcd", "member")} {
		if _, err := os.Stat(filepath.Join(path, marker)); err == nil {
			return nil
		}
	}
	return errors.New("is not empty and was not made by Berth")
}

// bare reduces an *fs.PathError to its cause, for callers whose message already names the path.
func bare(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
