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

// claim creates the folder if necessary, and checks that it is a recording that no other process is
// writing. It takes the lock before it looks at the content: what another process has written so
// far may not look like a recording yet.
func claim(dir string) (release func(), err error) {
	if release, err = lock(dir, os.O_RDWR); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := isRecording(dir); err != nil {
		if release != nil {
			release()
		}
		return nil, err
	}
	if release != nil {
		return release, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return lock(dir, os.O_CREATE|os.O_RDWR)
}

// isRecording returns an error if the folder contains something else.
func isRecording(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ours := slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == IndexFile })
	for _, e := range entries {
		if !ours && e.Name() != lockFile && e.Name() != sessionsFolder && !strings.HasPrefix(e.Name(), writingPrefix) {
			return fmt.Errorf("%s has files and is no recording (%s): nothing was written; name a new folder, or an empty one", dir, e.Name())
		}
	}
	return nil
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
