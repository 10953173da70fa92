package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// file is one of a volume's files.
type file struct {
	data []byte
	mode int32
	user *int64 // its owner; nil: root
}

// The names by which a volume's files are swapped all at once. What a container sees are links:
// name -> ..data/name, and ..data -> ..2006_01_02_15_04_05.123, a folder that is never changed once
// ..data leads to it. A program that watches its configuration watches ..data.
const (
	dataLink    = "..data"
	dataNewLink = "..data_tmp"
	dataFolder  = "..2006_01_02_15_04_05."
)

// writeAtomically replaces the folder's files. Readers see either all old files or all new ones.
// Nothing is written if nothing changes. Leftovers of an agent that was killed on the way are
// removed. own sets the files' group before they become visible.
func writeAtomically(dir string, files map[string]file, own func() error) error {
	clean := make(map[string]file, len(files))
	for path, content := range files {
		if err := validFilePath(path); err != nil {
			return err
		}
		clean[filepath.Clean(path)] = content
	}
	current, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	keep := map[string]bool{dataLink: true, current: true}
	if current == "" || !shows(filepath.Join(dir, current), clean) {
		fresh, err := swap(dir, clean, own)
		if err != nil {
			return err
		}
		// The previous folder stays until the next time: a process may just be opening a file in
		// it.
		keep[fresh] = true
	}
	return tidy(dir, keep, clean)
}

// shows reports whether the folder holds these files with this content and no others.
func shows(dir string, files map[string]file) bool {
	found := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		wanted, ok := files[name]
		content, err := os.ReadFile(path)
		if !ok || err != nil || !bytes.Equal(content, wanted.data) {
			return fs.ErrInvalid
		}
		found++
		return nil
	})
	return err == nil && found == len(files)
}

// swap writes the files into a new folder and then points ..data to it.
func swap(dir string, files map[string]file, own func() error) (name string, err error) {
	fresh, err := os.MkdirTemp(dir, time.Now().UTC().Format(dataFolder))
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(fresh) // the next try would find and remove it, too
		}
	}()
	if err := os.Chmod(fresh, 0o755); err != nil { // whatever the umask is
		return "", err
	}
	for path, content := range files {
		if err := writeFile(filepath.Join(fresh, path), content); err != nil {
			return "", err
		}
	}
	if err := own(); err != nil {
		return "", err
	}
	link := filepath.Join(dir, dataNewLink)
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Symlink(filepath.Base(fresh), link); err != nil {
		return "", err
	}
	return filepath.Base(fresh), os.Rename(link, filepath.Join(dir, dataLink))
}

func writeFile(path string, content file) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	mode := os.FileMode(content.mode) & fs.ModePerm
	if err := os.WriteFile(path, content.data, mode); err != nil {
		return err
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		return err
	}
	if content.user == nil {
		return nil
	}
	return os.Lchown(path, int(*content.user), -1)
}

// tidy creates the links by which containers see the files, and removes links to files that are
// gone, and old folders.
func tidy(dir string, keep map[string]bool, files map[string]file) error {
	for path, content := range files {
		name, _, _ := strings.Cut(path, "/")
		keep[name] = true
		link := filepath.Join(dir, name)
		if _, err := os.Lstat(link); err == nil {
			continue
		}
		if err := os.Symlink(filepath.Join(dataLink, name), link); err != nil {
			return err
		}
		if content.user != nil {
			if err := os.Lchown(link, int(*content.user), -1); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		path := filepath.Join(dir, name)
		switch {
		case keep[name]:
		case strings.HasPrefix(name, ".."): // a former folder, or what an interrupted swap left
			err = errors.Join(err, os.RemoveAll(path))
		case entry.Type() == fs.ModeSymlink:
			if to, readErr := os.Readlink(path); readErr == nil && strings.HasPrefix(to, dataLink+"/") {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}
	return err
}

// validFilePath rejects paths that lead out of the volume, or that the swap uses itself.
func validFilePath(path string) error {
	const longestName, longestPath = 255, 4096
	if path == "" {
		return fmt.Errorf("invalid path: must not be empty: %q", path)
	}
	if filepath.IsAbs(path) {
		return fmt.Errorf("invalid path: must be relative path: %s", path)
	}
	if len(path) > longestPath {
		return fmt.Errorf("invalid path: must be less than or equal to %d characters", longestPath)
	}
	names := strings.Split(path, "/")
	for _, name := range names {
		if name == ".." {
			return fmt.Errorf("invalid path: must not contain '..': %s", path)
		}
		if len(name) > longestName {
			return fmt.Errorf("invalid path: filenames must be less than or equal to %d characters", longestName)
		}
	}
	if strings.HasPrefix(filepath.Clean(path), "..") { // "./..data" as well
		return fmt.Errorf("invalid path: must not start with '..': %s", path)
	}
	return nil
}
