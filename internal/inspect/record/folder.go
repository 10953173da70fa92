package record

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
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

// Index is the content of the index file: what the folder has, and until when it is
// valid. It is written last, so it never names what is not there.
type Index struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	// Cluster is the UID of the namespace kube-system: a recording can be continued for the same
	// cluster only.
	Cluster  string    `json:"cluster"`
	Sessions []Session `json:"sessions"`
	// Objects is how many objects there are now, for people.
	Objects int `json:"objects"`
}

// Session is a period in which the recording ran without interruption; one that gets large is
// followed by another at once. Its folder has the objects at its beginning, and their changes.
type Session struct {
	Folder string           `json:"folder"`
	Began  metav1.MicroTime `json:"began"`
	Until  metav1.MicroTime `json:"until"`
	// Files are those that its folder has. Older recordings do not say.
	Files []string `json:"files,omitempty"`
	// Missing lists the kinds that could not be read, and why, one per line. Of these it is not
	// known whether there are objects. Older recordings do not say.
	Missing []string `json:"missing,omitempty"`
}

// sessionAt returns the last session that had begun at a time, or nil. It may have ended before.
// Users give times in whole seconds: one in which a session began means that session, unless the
// one before it went on until then.
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

// MissingAt lists the kinds that were not recorded at a time, as [Session] does.
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
	// The index names it, so it was there.
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

// noteWritten notes that the session was written until a time, with its changes. It may have begun
// later.
func (s *Session) noteWritten(until metav1.MicroTime, c *changes) {
	if s.Until.Before(&until) {
		s.Until = until
	}
	// From now on, the session cannot be shown without its changes.
	if name := filepath.Base(c.name); c.size > 0 && !slices.Contains(s.Files, name) {
		s.Files = append(s.Files, name)
	}
}

// extendEnd moves the end of a session that was killed from its last checkpoint to its
// last change that was written.
func (s *Session) extendEnd(dir string) {
	// What cannot be read cannot be played, either: the session ends before it.
	_ = replaySession(dir, s.Folder, time.Now(), func(c *Change) error {
		if s.Until.Before(&c.At) {
			s.Until = c.At
		}
		return nil
	})
}

// Change is a line of a file of changes, in the order in which they were seen.
type Change struct {
	At   metav1.MicroTime `json:"at"`
	Type string           `json:"type"` // Set or Delete
	// Object is the whole object or, if it was deleted, its kind and name.
	Object json.RawMessage `json:"object"`
}

const (
	// Names within the folder. Files that are being written begin with writingPrefix, and
	// are of no use after a crash.
	sessionsFolder = "sessions"
	changesPrefix  = "changes-"
	changesSuffix  = ".jsonl"
	writingPrefix  = ".writing-"
)

// noRecording is the error of a folder without an index. It is fs.ErrNotExist to callers.
type noRecording string

// Error says what a recording is, for users who gave the wrong folder.
func (dir noRecording) Error() string {
	return fmt.Sprintf("%s: not a recording, which has a file %s; berth record makes one", string(dir), IndexFile)
}

// Unwrap lets callers treat it as a missing file.
func (noRecording) Unwrap() error { return fs.ErrNotExist }

// ReadIndex reads the index of a recording. Since anyone may have made the recording,
// it checks that the sessions' folders are within it. A folder that is no recording
// is an error that is fs.ErrNotExist.
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
		// A recording may come from anywhere: "../../home" must not be read, or
		// removed when room is made.
		if !filepath.IsLocal(s.Folder) {
			return nil, fmt.Errorf("%s: sessions: folder %q: must be within the recording", filepath.Join(dir, IndexFile), s.Folder)
		}
	}
	return index, nil
}

// replaceFile replaces a file. After a crash of the machine it is the old one or the new
// one: the content is on disk before the name is.
func replaceFile(dir, name string, write func(w *bufio.Writer) error) error {
	return inside(dir, func(root *os.Root) error {
		writing := filepath.Join(filepath.Dir(name), writingPrefix+rand.Text())
		f, err := root.OpenFile(writing, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		// After the rename nothing remains to be removed, and that error does not matter.
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

// writeList writes objects as a List like kubectl's, one object per line: line tools can
// read it, and two recordings can be compared.
func writeList(dir, name string, objects []json.RawMessage) error {
	return replaceFile(dir, name, func(w *bufio.Writer) error {
		w.WriteString(`{"apiVersion":"v1","kind":"List","items":[`)
		for i, object := range objects {
			if i > 0 {
				w.WriteByte(',')
			}
			w.WriteByte('\n')
			w.Write(object)
		}
		_, err := w.WriteString("\n]}\n")
		return err
	})
}

// changes is the file that a session's changes are appended to. It is made with the first
// of them. A session without changes has none.
type changes struct {
	dir  string // of the recording
	name string // within it
	file *os.File
	out  *bufio.Writer
	size int64
}

// addChange appends a change to the buffer. size counts what is buffered, too.
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

// sizesOf is what the files in a folder take, by name; nil if there is no folder.
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

// sumSizes is the sum of sizes.
func sumSizes(sizes map[string]int64) (size int64) {
	for _, one := range sizes {
		size += one
	}
	return size
}

// flush writes what is buffered. It does not wait for the disk: a crash of the machine
// may lose the last changes, and the reader copes with that.
func (c *changes) flush() error {
	if c.out == nil {
		return nil
	}
	return c.out.Flush()
}

// close flushes and closes the file, if there is one.
func (c *changes) close() error {
	if c.file == nil {
		return nil
	}
	err := errors.Join(c.out.Flush(), c.file.Close())
	c.file, c.out = nil, nil
	return err
}

// sessionLayout is that of a session's folder's name, which says when it began. Sorted by
// name, sessions are in order of time.
const sessionLayout = "20060102T150405.000000Z"

// sessionName is the name of the folder of a session that began then.
func sessionName(t time.Time) string { return t.UTC().Format(sessionLayout) }
