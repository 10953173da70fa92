// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package owned checks whether a file or folder can be trusted because of its owner: it must belong
// to the user of this process, and other users must not be able to write to it. Files in the
// current folder need this check, because a folder writable by others, or an archive from another
// user, may contain anything.
package owned

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

const (
	// Writable holds the mode bits that let other users change a file.
	Writable fs.FileMode = 0o022
	// Accessible holds the mode bits that let other users access a file in any way. A secret must
	// have none of them; files checked out by a version control system always have some.
	Accessible fs.FileMode = 0o077
)

// Check returns nil if the path belongs to this user and has none of the refused mode bits. For a
// symbolic link, both the link and its target must belong to the user.
func Check(path string, refused fs.FileMode) error { return CheckFor(os.Geteuid(), path, refused) }

// CheckFor is Check for the user with the given ID.
func CheckFor(uid int, path string, refused fs.FileMode) error {
	for _, stat := range []func(string) (fs.FileInfo, error){os.Lstat, os.Stat} {
		info, err := stat(path)
		if err != nil {
			return err
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != uid {
			return fmt.Errorf("belongs to user %d and not to user %d, who runs this", owner.Uid, uid)
		}
		// The mode of a symbolic link has no meaning.
		if info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&refused != 0 {
			return fmt.Errorf("has mode %04o, which gives others access (chmod %04o)", info.Mode().Perm(), info.Mode().Perm()&^refused)
		}
	}
	return nil
}
