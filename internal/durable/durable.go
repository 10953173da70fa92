// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package durable writes files that must be complete after the process is killed or the machine
// crashes.
//
// An unfinished file has a name derived from the final name. A kill therefore leaves at most one
// unfinished file, which the next write overwrites. Two writes of the same file must not overlap.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Unfinished is the prefix of the names of files being written.
const Unfinished = ".new-"

// Replace replaces or creates a file. After a crash of the machine, the file has either the old or
// the new content; if Replace had returned, it has the new content.
func Replace(path string, content []byte, mode fs.FileMode) error {
	if err := write(path, content, mode, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Swap replaces or creates a file for readers that must not see partial content. After a kill of
// the process, the file has either the old or the new content. After a crash of the machine, it may
// be lost.
func Swap(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, false)
}

func write(path string, content []byte, mode fs.FileMode, sync bool) error {
	next := filepath.Join(filepath.Dir(path), Unfinished+filepath.Base(path))
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(next, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}

	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(mode)) // whatever the umask is
	if sync {
		err = errors.Join(err, file.Sync())
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next)
	}
	return err
}

// SyncDir makes renames in a folder durable.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
