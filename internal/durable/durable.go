// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package durable writes files that must be whole after a kill of the process or a crash of the
// machine.
//
// What is not finished yet has a name that is derived from the file's. So what a kill leaves is
// overwritten by the next write, and does not pile up; and two writes of one file must not overlap.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Unfinished is the prefix of the names of files being written.
const Unfinished = ".new-"

// Replace replaces a file, or creates it. After a crash of the machine it is the old one or the new
// one, and the new one if Replace had returned.
func Replace(path string, content []byte, mode fs.FileMode) error {
	if err := write(path, content, mode, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Swap replaces a file, or creates it, for readers that must not see a part of it. After a kill of
// the process it is the old one or the new one; a crash of the machine can lose it.
func Swap(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, false)
}

func unfinished(path string) string {
	return filepath.Join(filepath.Dir(path), Unfinished+filepath.Base(path))
}

func write(path string, content []byte, mode fs.FileMode, sync bool) error {
	next := unfinished(path)
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
