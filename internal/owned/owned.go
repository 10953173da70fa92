// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package owned checks whether a file or folder may be trusted because of its owner: it belongs to
// the user of this process, and no other user may write it. Files in the current folder must be: a
// folder writable by others, or a foreign archive, can hold anything.
package owned

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

const (
	// Writable are the bits that let others change something.
	Writable fs.FileMode = 0o022
	// Accessible holds the bits that also permit reading by others. A secret has none of them, and
	// files checked out by a version control system always have some.
	Accessible fs.FileMode = 0o077
)

// Check is nil for a path of this user's without the refused bits of mode. A symbolic link must be
// the user's, as well as what it leads to.
func Check(path string, refused fs.FileMode) error { return CheckFor(os.Geteuid(), path, refused) }

// CheckFor is Check for another user than that of this process.
func CheckFor(uid int, path string, refused fs.FileMode) error {
	for _, stat := range []func(string) (fs.FileInfo, error){os.Lstat, os.Stat} {
		info, err := stat(path)
		if err != nil {
			return err
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != uid {
			return fmt.Errorf("belongs to user %d and not to user %d, who runs this", owner.Uid, uid)
		}
		// The mode of a symbolic link means nothing.
		if info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&refused != 0 {
			return fmt.Errorf("has mode %04o, which lets others in (chmod %04o)", info.Mode().Perm(), info.Mode().Perm()&^refused)
		}
	}
	return nil
}
