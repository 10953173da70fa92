// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/owned"
)

// Kind is the kind of the index file.
const Kind = "Recording"

// Index is the content of the index file: the folder's contents, and the time until which they are
// valid. It is written last, so it never names missing files.
type Index struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	// Cluster is the UID of the namespace kube-system: a recording can be continued for the same
	// cluster only.
	Cluster  string    `json:"cluster"`
	Sessions []Session `json:"sessions"`
	// Objects is the current number of objects, for display.
	Objects int `json:"objects"`
}

// Session is a period of uninterrupted recording; a large session is immediately followed by
// another. Its folder has the objects at its beginning, and their changes.
type Session struct {
	Folder string           `json:"folder"`
	Began  metav1.MicroTime `json:"began"`
	Until  metav1.MicroTime `json:"until"`
	// Files lists the files in its folder. It is unset in older recordings.
	Files []string `json:"files,omitempty"`
	// Missing lists the unreadable kinds with the reason, one per line. The cluster may have
	// objects of these kinds. It is unset in older recordings.
	Missing []string `json:"missing,omitempty"`
}

// sessionAt returns the last session that had begun at a time, or nil. The session may have ended
// before that time. Users give times in whole seconds: the second of a session's beginning selects
// that session, unless the previous session lasted until then.
func (i *Index) sessionAt(at time.Time) (last *Session) {
	for n := range i.Sessions {
		s := &i.Sessions[n]
		covered := last != nil && !last.Until.Time.Before(at)
		if s.Began.After(at) && (covered || !s.Began.Truncate(time.Second).Equal(at)) {
			break
		}
		last = s
	}
	return last
}

// MissingAt lists the kinds not recorded at a time, as in [Session].
func (i *Index) MissingAt(at time.Time) []string {
	if s := i.sessionAt(at); s != nil {
		return s.Missing
	}
	return nil
}

// checkFolder returns an error if the folder of the session, or one of its files, is missing:
// without them a session would look like a cluster without objects. Sessions of older recordings
// name no files and are accepted.
func (s *Session) checkFolder(dir string) error {
	folder := filepath.Join(dir, s.Folder)
	there, err := sizesOf(dir, s.Folder)
	if err != nil {
		return err
	}
	// The index names it, so it existed once.
	if there == nil {
		return fmt.Errorf("%s: the session that began at %s is not there", folder, s.Began.UTC().Format(time.RFC3339))
	}
	for _, name := range s.Files {
		if _, ok := there[name]; !ok {
			return fmt.Errorf("%s is missing: the session cannot be shown without it", filepath.Join(folder, name))
		}
	}
	return nil
}

// noteWritten records that the session, including its changes, was written until a time. It never
// moves the session's end back: the session may have begun after that time.
func (s *Session) noteWritten(until metav1.MicroTime, c *changes) {
	if s.Until.Before(&until) {
		s.Until = until
	}
	// From now on, the session cannot be shown without its changes.
	if name := filepath.Base(c.name); c.size > 0 && !slices.Contains(s.Files, name) {
		s.Files = append(s.Files, name)
	}
}

// extendEnd moves the end of a killed session from its last checkpoint to its last written change.
func (s *Session) extendEnd(dir string) {
	// Unreadable changes cannot be replayed either: the session ends before them.
	_ = replaySession(dir, s.Folder, time.Now(), func(c *Change) error {
		if s.Until.Before(&c.At) {
			s.Until = c.At
		}
		return nil
	})
}

// Change is a line of a file of changes, in order of observation.
type Change struct {
	At   metav1.MicroTime `json:"at"`
	Type string           `json:"type"` // Set or Delete
	// Object is the whole object or, if it was deleted, its kind and name.
	Object json.RawMessage `json:"object"`
}

const (
	// These names are within the folder. The names of files being written begin with writingPrefix;
	// such files are useless after a crash.
	sessionsFolder = "sessions"
	changesPrefix  = "changes-"
	changesSuffix  = ".jsonl"
	writingPrefix  = ".writing-"
)

// noRecording is the error of a folder without an index. It matches fs.ErrNotExist.
type noRecording string

// Error explains recordings to users who named the wrong folder.
func (dir noRecording) Error() string {
	return fmt.Sprintf("%s: not a recording, which has a file %s; berth record makes one", string(dir), IndexFile)
}

// Unwrap lets callers treat it as a missing file.
func (noRecording) Unwrap() error { return fs.ErrNotExist }

// ReadIndex reads the index of a recording. Since the recording may be of any origin, it checks
// that the sessions' folders are within it. For a folder without a recording, the error matches
// fs.ErrNotExist.
func ReadIndex(dir string) (*Index, error) {
	text, err := owned.ReadFileIn(dir, IndexFile)
	if info, failed := os.Stat(dir); errors.Is(err, fs.ErrNotExist) || failed == nil && !info.IsDir() {
		return nil, noRecording(dir)
	}
	if err != nil {
		return nil, err
	}

	index := &Index{}
	if err := json.Unmarshal(text, index); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, IndexFile), err)
	}
	if index.Kind != Kind {
		return nil, fmt.Errorf("%s: kind %q: must be %s", filepath.Join(dir, IndexFile), index.Kind, Kind)
	}

	for _, s := range index.Sessions {
		// The recording may be of any origin: "../../home" must not be read, or removed to make
		// room.
		if !filepath.IsLocal(s.Folder) {
			return nil, fmt.Errorf("%s: sessions: folder %q: must be within the recording", filepath.Join(dir, IndexFile), s.Folder)
		}
	}
	return index, nil
}

// replaceFile replaces a file atomically, even if the machine crashes: the content is on disk
// before the file gets its name.
func replaceFile(dir, name string, write func(w *bufio.Writer) error) error {
	return inside(dir, func(root *os.Root) error {
		writing := filepath.Join(filepath.Dir(name), writingPrefix+rand.Text())
		f, err := root.OpenFile(writing, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		// After the rename, Remove fails because the file has another name, which does not matter.
		defer root.Remove(writing)
		w := bufio.NewWriterSize(f, 1<<16)
		if err := errors.Join(write(w), w.Flush(), f.Sync(), f.Close()); err != nil {
			return err
		}
		if err := root.Rename(writing, name); err != nil {
			return err
		}
		return durable.SyncDir(filepath.Dir(filepath.Join(dir, name)))
	})
}

// writeList writes objects to a file.
func writeList(dir, name string, objects []json.RawMessage) error {
	return replaceFile(dir, name, func(w *bufio.Writer) error { return formatList(w, objects) })
}

// formatList writes objects as a List like kubectl's, one object per line: line tools can read it,
// two recordings can be compared, and messages have line numbers.
func formatList(w io.Writer, objects []json.RawMessage) error {
	_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"List","items":[`)
	for i, object := range objects {
		if i > 0 {
			_, _ = io.WriteString(w, ",")
		}
		fmt.Fprintf(w, "\n%s", object)
	}
	_, err := io.WriteString(w, "\n]}\n") // a bufio.Writer returns its first error
	return err
}

// changes is the file of a session's changes. It is created with the first change.
type changes struct {
	dir  string // folder of the recording
	name string // name within dir
	file *os.File
	out  *bufio.Writer
	size int64
}

// addChange appends a change to the buffer. size includes buffered bytes.
func (c *changes) addChange(change *Change) error {
	line, err := json.Marshal(change)
	if err != nil {
		return err
	}
	if c.file == nil {
		if c.file, err = openInside(c.dir, c.name, os.O_CREATE|os.O_WRONLY|os.O_APPEND); err != nil {
			return err
		}
		c.out = bufio.NewWriter(c.file)
	}
	c.size += int64(len(line)) + 1
	c.out.Write(line)
	return c.out.WriteByte('\n')
}

// sizesOf returns the sizes of the files in a folder by name, or nil for a missing folder.
func sizesOf(dir, folder string) (sizes map[string]int64, err error) {
	entries, err := listInside(dir, folder)
	if err != nil || entries == nil {
		return nil, err
	}
	sizes = map[string]int64{}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			sizes[entry.Name()] = info.Size()
		}
	}
	return sizes, err
}

// sumSizes returns the sum of the sizes.
func sumSizes(sizes map[string]int64) (size int64) {
	for _, one := range sizes {
		size += one
	}
	return size
}

// flush writes the buffer. It does not wait for the disk: a crash of the machine may lose the last
// changes, which the reader tolerates.
func (c *changes) flush() error {
	if c.out == nil {
		return nil
	}
	return c.out.Flush()
}

// close flushes and closes the file, if any.
func (c *changes) close() error {
	if c.file == nil {
		return nil
	}
	err := errors.Join(c.out.Flush(), c.file.Close())
	c.file, c.out = nil, nil
	return err
}

// sessionLayout is the format of a session folder's name: its beginning. Sorting by name sorts
// sessions by time.
const sessionLayout = "20060102T150405.000000Z"

// sessionName returns the folder name of a session that begins at t.
func sessionName(t time.Time) string { return t.UTC().Format(sessionLayout) }

// A recording may be of any origin, and contain links that lead elsewhere. Everything read, written
// or removed in its folder is therefore named by a path within the folder, and paths that lead out
// of it are errors.

// inside calls do with the root of a recording's folder.
func inside(dir string, do func(root *os.Root) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return do(root)
}

// openInside opens a file of a recording for writing.
func openInside(dir, name string, flags int) (f *os.File, err error) {
	err = inside(dir, func(root *os.Root) error {
		f, err = root.OpenFile(name, flags, 0o600)
		return err
	})
	return f, err
}

// removeInside removes a file or folder of a recording recursively.
func removeInside(dir, name string) error {
	return inside(dir, func(root *os.Root) error { return root.RemoveAll(name) })
}

// listInside lists a folder of a recording; nil if it does not exist.
func listInside(dir, name string) (entries []os.DirEntry, err error) {
	err = inside(dir, func(root *os.Root) error {
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		entries, err = f.ReadDir(-1)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
