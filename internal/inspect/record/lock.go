package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// lockFile is locked while a recording runs. It is left behind, unlocked.
const lockFile = "lock"

// claim checks that the folder is a recording that no other process is writing, and locks it. It
// takes the lock before it looks at the content: what another process has written so far may not
// look like a recording yet. A folder without a recording is left as it is, and release is nil:
// create claims it once there is something to write.
func claim(dir string) (release func(), err error) {
	if release, err = lock(dir, os.O_RDWR); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ours, err := isRecording(dir)
	switch {
	case err != nil && release != nil:
		release()
		return nil, err
	case err != nil || release != nil || !ours:
		return release, err
	}
	return lock(dir, os.O_CREATE|os.O_RDWR)
}

// create makes the folder of a new recording, and claims it.
func create(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if release, err = lock(dir, os.O_CREATE|os.O_RDWR); err != nil {
		return nil, err
	}
	ours, err := isRecording(dir)
	if err == nil && ours {
		err = fmt.Errorf("%s: another berth record has written to it meanwhile; start this one again to continue there", dir)
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// isRecording reports whether the folder contains a recording. It returns an error if it contains
// something else.
func isRecording(dir string) (ours bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	ours = slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == IndexFile })
	for _, e := range entries {
		if !ours && e.Name() != lockFile && e.Name() != sessionsFolder && !strings.HasPrefix(e.Name(), writingPrefix) {
			return false, fmt.Errorf("%s has files and is no recording (%s): nothing was written; name a new folder, or an empty one", dir, e.Name())
		}
	}
	return ours, nil
}

func lock(dir string, flags int) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := acquire(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: another berth record writes to it; name another folder, or end that one", dir)
	}
	return func() { f.Close() }, nil
}
