// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// lockFile is locked while a recording runs. It remains afterwards, unlocked: removing it could
// take the lock from a process that has just opened it.
const lockFile = "lock"

// claimFolder checks that the folder is a recording not being written by another process, and locks
// it. It takes the lock before it inspects the content, since an unfinished recording of another
// process may not look like one yet. In a folder without a recording and without a lock file, it
// changes nothing and returns a nil release: createFolder claims the folder once there is something
// to write.
func claimFolder(dir string) (release func(), err error) {
	if release, err = lockFolder(dir, os.O_RDWR); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ours, err := isRecording(dir)
	// In order: an error; a new folder; a recording without a lock file, such as a copied one.
	switch {
	case err != nil && release != nil:
		release()
		return nil, err
	case err != nil || !ours:
		return release, err
	case release == nil:
		if release, err = lockFolder(dir, os.O_CREATE|os.O_RDWR); err != nil {
			return nil, err
		}
	}

	removeLeftovers(dir)
	return release, nil
}

// removeLeftovers removes temporary files left by a kill. They are useless, so failures are
// ignored. The folder must be locked: another recorder may be writing such a file.
func removeLeftovers(dir string) {
	_ = inside(dir, func(root *os.Root) error {
		return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() && strings.HasPrefix(entry.Name(), writingPrefix) {
				_ = root.Remove(name)
			}
			return nil
		})
	})
}

// createFolder creates the folder of a new recording, and claims it. Only the user may read it: a
// recording reveals much about a cluster.
func createFolder(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if release, err = lockFolder(dir, os.O_CREATE|os.O_RDWR); err != nil {
		return nil, err
	}
	// Another process may have begun between the claim and now.
	ours, err := isRecording(dir)
	if err == nil && ours {
		err = fmt.Errorf("%s: another berth record has written to it meanwhile; start this one again to continue there", dir)
	}
	if err != nil {
		release()
		return nil, err
	}
	removeLeftovers(dir)
	return release, nil
}

// isRecording reports whether the folder has a recording with an index. It returns an error if the
// folder has anything else, except for the remains of a recording killed before it wrote the index.
func isRecording(dir string) (ours bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == IndexFile }) {
		return true, nil
	}
	// A kill before the index was written leaves one session, which is restarted. Several sessions
	// belong to a recording that has lost its index; restarting would remove them as leftovers.
	if n := len(listSessions(dir)); n > 1 {
		return false, fmt.Errorf("%s has %d sessions of a recording, and no %s: nothing was written; put that file "+
			"back, or name a new folder", dir, n, IndexFile)
	}
	for _, e := range entries {
		// The folder belongs to the user, and contains something else.
		if e.Name() != lockFile && e.Name() != sessionsFolder && !strings.HasPrefix(e.Name(), writingPrefix) && !leftOver(dir, e.Name()) {
			return false, fmt.Errorf("%s has files and is no recording (%s): nothing was written; name a new folder, "+
				"or an empty one", dir, e.Name())
		}
	}
	return false, nil
}

// leftOver reports whether a file was written by a recording killed before it had an index: its
// session has a list of the same name. Such a folder may be reused.
func leftOver(dir, name string) bool {
	return slices.ContainsFunc(listSessions(dir), func(session string) bool {
		return inside(dir, func(root *os.Root) error { _, err := root.Lstat(filepath.Join(session, name)); return err }) == nil
	})
}

// listSessions lists the folders of sessions, including those missing from the index.
func listSessions(dir string) (folders []string) {
	entries, _ := listInside(dir, sessionsFolder)
	for _, e := range entries {
		// Other folders are not the recorder's.
		if _, err := time.Parse(sessionLayout, e.Name()); err == nil && e.IsDir() {
			folders = append(folders, filepath.Join(sessionsFolder, e.Name()))
		}
	}
	return folders
}

// lockFolder opens the lock file and locks it. Closing the file releases the lock, at the latest
// when the process ends.
func lockFolder(dir string, flags int) (release func(), err error) {
	f, err := openInside(dir, lockFile, flags)
	if err != nil {
		return nil, err
	}
	// The lock is released when the process ends at the latest.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: another berth record writes to it; name another folder, or stop it", dir)
	}
	return func() { f.Close() }, nil
}
