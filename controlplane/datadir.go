// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/owned"
)

// dataDir is a data directory held exclusively by this process.
//
//	version         the version that wrote the directory; newer versions are refused
//	lock            locked (flock) while a control plane runs on the directory
//	kubeconfig      the kubeconfig of the administrator
//	controlplane.log
//	port            the port used last
//	pki/            CAs, the key that signs service account tokens, certificates
//	etcd/           the data of etcd
type dataDir struct {
	root string
	lock *os.File
}

// dataFormat counts incompatible layout changes. It increases when an older build would misread the
// files of a newer build.
const dataFormat = 1

// dataVersion is the content of the version file.
type dataVersion struct {
	Format     int    `json:"format"`
	Kubernetes string `json:"kubernetes"`
}

// pathOf returns a path below the directory.
func (d *dataDir) pathOf(elem ...string) string {
	return filepath.Join(append([]string{d.root}, elem...)...)
}

// openDataDir creates or opens the directory, locks it, and verifies that this version may write to
// it. The caller must close the directory.
func openDataDir(root string) (*dataDir, error) {
	absolute, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w: name an absolute path with --data-dir", root, err)
	}
	root = absolute
	// MkdirAll would fail as well, but without advice.
	if info, err := os.Stat(root); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("data directory %s: is a file: name a directory with --data-dir", root)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %s: %w: make it accessible or name another with --data-dir", root, stripPath(err))
	}
	// Anyone who can write here can replace the CAs that the cluster trusts.
	if err := owned.Check(root, owned.Writable); err != nil {
		return nil, fmt.Errorf("data directory %s: %w: name one of your own with --data-dir", root, err)
	}
	// Take the lock before reading the version: the holder may be writing it.
	d := &dataDir{root: root}
	if err := d.acquireLock(); err != nil {
		return nil, err
	}
	if err := d.checkVersion(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// acquireLock takes the lock, or fails immediately if another process holds it. The kernel releases
// the lock when the process ends, however it ends.
func (d *dataDir) acquireLock() error {
	lock, err := os.OpenFile(d.pathOf("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("data directory %s: %w: make it accessible or name another with --data-dir", d.root, stripPath(err))
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 20)
		n, _ := lock.ReadAt(holder, 0)
		lock.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("data directory %s: cannot be locked: %w: name one on a local file system with --data-dir", d.root, err)
		}
		return fmt.Errorf("data directory %s: in use by process %s: stop it or name another with --data-dir",
			d.root, strings.TrimSpace(string(holder[:n])))
	}
	d.lock = lock
	// The PID in the file is only for the error message above; the flock decides who holds the
	// directory.
	if err := lock.Truncate(0); err == nil {
		_, _ = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return nil
}

// close releases the lock.
func (d *dataDir) close() { d.lock.Close() }

// checkVersion refuses directories written by a newer version, which an older one would silently
// misread, and directories with state but without a version. It runs before anything except the
// lock file is written, so a directory with neither a version file nor state is new. An upgrade
// rewrites the version file.
func (d *dataDir) checkVersion() error {
	path := d.pathOf("version")
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// State without a version file means that the directory was copied or deleted partially.
		for _, state := range []string{"etcd", "pki"} {
			if _, err := os.Lstat(d.pathOf(state)); err == nil {
				return fmt.Errorf("data directory %s: has %s but no version file: restore the file or name an empty "+
					"directory with --data-dir", d.root, state)
			}
		}
	case err != nil:
		return fmt.Errorf("%s: %w: make it readable or name another directory with --data-dir", path, stripPath(err))
	default:
		var found dataVersion
		if err := json.Unmarshal(content, &found); err != nil || found.Format < 1 {
			line, _, _ := strings.Cut(string(content), "\n")
			return fmt.Errorf("%s: %.80q: not a version of Berth's data: restore the file or name an empty directory "+
				"with --data-dir", path, line)
		}
		if err := found.checkUpgrade(d.root); err != nil {
			return err
		}
		// Most starts have nothing to write.
		if found == (dataVersion{dataFormat, KubernetesVersion}) {
			return nil
		}
	}

	ours, err := json.Marshal(dataVersion{dataFormat, KubernetesVersion})
	if err != nil {
		return err
	}
	return writeDurably(path, append(ours, '\n'), 0o600)
}

// checkUpgrade reports whether this version may continue from v: the API server reads data stored
// by older minor versions, but not by newer ones. Patch versions are irrelevant.
func (v dataVersion) checkUpgrade(root string) error {
	theirs, err := utilversion.ParseGeneric(v.Kubernetes)
	if err != nil {
		return fmt.Errorf("%s: kubernetes: %q: not a version: restore the file or name an empty "+
			"directory with --data-dir", filepath.Join(root, "version"), v.Kubernetes)
	}
	ours := utilversion.MustParseGeneric(KubernetesVersion)
	newer := theirs.Major() > ours.Major() || theirs.Major() == ours.Major() && theirs.Minor() > ours.Minor()
	if v.Format > dataFormat || newer {
		return fmt.Errorf("data directory %s: was written by a newer version (format %d, Kubernetes %s; this is "+
			"format %d, Kubernetes %s): use that version or name another directory with --data-dir",
			root, v.Format, v.Kubernetes, dataFormat, KubernetesVersion)
	}
	return nil
}

// writeDurably replaces a file atomically and waits for the disk. A crash at any moment leaves
// either the complete old content or the complete new content.
func writeDurably(path string, content []byte, mode fs.FileMode) error {
	return writeError(path, durable.Replace(path, content, mode))
}

// writeAtomically replaces a file atomically without waiting for the disk, for files rewritten at
// every start. After a power cut the file may be the old one, or missing.
func writeAtomically(path string, content []byte, mode fs.FileMode) error {
	return writeError(path, durable.Swap(path, content, mode))
}

// writeError adds the file's path to an error.
func writeError(path string, err error) error {
	if err != nil {
		return fmt.Errorf("write %s: %w", path, stripPath(err))
	}
	return nil
}

// stripPath reduces an *fs.PathError to its cause, for callers whose message already names the
// path. It returns other errors unchanged.
func stripPath(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
