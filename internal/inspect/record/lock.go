package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// lockFile is locked while a recording is under way. It is left behind, unlocked.
const lockFile = "lock"

// claim makes the folder if there is none, sees that it is this package's to write to, and that nobody else does.
func claim(dir string) (release func(), err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ours := slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == IndexFile })
	for _, e := range entries {
		if !ours && e.Name() != lockFile && e.Name() != sessionsFolder && !strings.HasPrefix(e.Name(), writingPrefix) {
			return nil, fmt.Errorf("%s has files and is no recording (%s): nothing was written; name a new folder, or an empty one", dir, e.Name())
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := acquire(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: another berth record writes to it; name another folder, or end that one", dir)
	}
	return func() { f.Close() }, nil
}
