// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/owned"
)

// This file reads a recording: the objects at the beginning of a session, and the changes up to a
// time. Missing files are errors, because every result for a cluster without its nodes or its
// budgets would be wrong.

// At reads the objects' state at a time. It reads the last session that began before that time, and
// replays the session's changes. It returns an error if the recording does not cover the time.
func At(dir string, at time.Time) (*manifest.Set, error) {
	index, err := ReadIndex(dir)
	if err != nil {
		return nil, err
	}

	// Users give times in whole seconds, so the last second counts as covered.
	session := index.sessionAt(at)
	if session == nil || session.Until.Add(time.Second).Before(at) {
		return nil, fmt.Errorf("%s: nothing was recorded at %s; there is %s", dir, at.UTC().Format(time.RFC3339), listSpans(index))
	}
	// checkFolder requires all files named by the index.
	if err := session.checkFolder(dir); err != nil {
		return nil, err
	}

	objects := map[identity]json.RawMessage{}
	var order []identity
	set := func(text []byte) error {
		key, err := identityOf(text)
		if err != nil {
			return err
		}
		// Objects keep the order in which they first appeared. A deleted and recreated object is
		// listed once; see below.
		if objects[key] == nil {
			order = append(order, key)
		}
		objects[key] = slices.Clone(text)
		return nil
	}

	// Apply the state at the beginning of the session, and then its changes.
	for _, k := range snapshot.Kinds() {
		if err := readList(dir, filepath.Join(session.Folder, k.Resource+".json"), set); err != nil {
			return nil, err
		}
	}

	err = replaySession(dir, session.Folder, at, func(c *Change) error {
		// A Set change has the whole object, so it does not depend on the object's earlier state.
		if c.Type == "Set" {
			return set(c.Object)
		}
		key, err := identityOf(c.Object)
		if err == nil {
			delete(objects, key)
		}
		return err
	})

	if err != nil {
		return nil, err
	}
	// order may contain an object twice. Use its first position.
	list := make([]json.RawMessage, 0, len(objects))
	for _, key := range order {
		if o := objects[key]; o != nil {
			list = append(list, o)
			delete(objects, key)
		}
	}

	// Validate the objects like the objects of any other file, because a recording may be of
	// foreign origin. Accept objects that the API server once accepted, even if new objects like
	// them would be invalid.
	var text bytes.Buffer
	if err := formatList(&text, list); err != nil {
		return nil, err
	}
	all, err := manifest.Read([]string{"-"}, &text, manifest.Options{Lenient: true, Stdin: dir})
	if err != nil {
		return nil, err
	}
	all.Whole = len(session.Missing) == 0
	return all, nil
}

// identity distinguishes objects. Kind names are unique in a recording.
type identity struct{ kind, namespace, name string }

// identityOf parses only the identity of an object.
func identityOf(text []byte) (identity, error) {
	// Package manifest decodes everything else, once.
	var object struct {
		Kind     string
		Metadata struct{ Namespace, Name string }
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return identity{}, err
	}
	return identity{object.Kind, object.Metadata.Namespace, object.Metadata.Name}, nil
}

// listSpans lists the times recorded without interruption, merging adjacent sessions.
func listSpans(index *Index) string {
	var list []string
	began := metav1.MicroTime{}
	for i, s := range index.Sessions {
		// Adjacent sessions were split because of their size.
		if i == 0 || !s.Began.Equal(&index.Sessions[i-1].Until) {
			began = s.Began
		}
		if i+1 == len(index.Sessions) || !s.Until.Equal(&index.Sessions[i+1].Began) {
			list = append(list, began.UTC().Format(time.RFC3339)+" to "+s.Until.UTC().Format(time.RFC3339))
		}
	}
	return strings.Join(list, ", ")
}

// readList calls take for the objects of a list written by the recorder. A missing file is an empty
// list, since session.checkFolder has checked for lost files. The argument of take is valid only
// until take returns.
func readList(dir, name string, take func([]byte) error) error {
	path := filepath.Join(dir, name)
	text, err := owned.ReadFileIn(dir, name)
	// Kinds without objects lack a file.
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}

	for _, item := range list.Items {
		if err := take(item); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// replaySession calls take for the session's changes up to a time, in their order. It fails if some
// changes are missing, because the result would be silently wrong.
func replaySession(dir, folder string, until time.Time, take func(*Change) error) error {
	entries, err := listInside(dir, folder)
	if err != nil {
		return err
	}
	var files []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), changesPrefix) && strings.HasSuffix(e.Name(), changesSuffix) {
			files = append(files, filepath.Join(folder, e.Name()))
		}
	}
	slices.Sort(files)

	for i, name := range files {
		path := filepath.Join(dir, name)
		// Files are numbered from 1 without a gap.
		if !strings.HasSuffix(path, fmt.Sprintf("%06d%s", i+1, changesSuffix)) {
			return fmt.Errorf("%s: the changes before it are missing", path)
		}
		f, err := owned.OpenIn(dir, name)
		if err != nil {
			return err
		}
		number := 0
		err = eachLine(bufio.NewReader(f), func(line []byte) error {
			number++
			var c Change
			if err := json.Unmarshal(line, &c); err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			// Changes are in order of time, so the rest is later as well. io.EOF ends the reading.
			if c.At.After(until) {
				return io.EOF
			}
			return take(&c)
		})
		f.Close()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}

	return nil
}

// eachLine calls take for each complete line: a crash may have truncated the last one. It stops at
// an error of take.
func eachLine(r *bufio.Reader, take func([]byte) error) error {
	for {
		line, err := r.ReadBytes('\n')
		// The line is truncated, so the change was not recorded.
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := take(line); err != nil {
			return err
		}
	}
}

// Step is one event of a recording, as a component's watches would have shown it.
type Step struct {
	At time.Time
	// Begins marks the beginning of a session. All objects that existed then follow, up to a step
	// with Began.
	Begins, Began bool
	// Object is the new state of an object of a played kind. With Gone, it was deleted, and only
	// its name is set.
	Object metav1.Object
	Gone   bool
}

// errEnough ends the reading when the consumer of the sequence stops.
var errEnough = errors.New("enough")

// played lists the played kinds by the names of their lists. Nodes precede their pods.
var played = []struct{ resource, kind string }{
	{"nodes", "Node"}, {"compositepodgroups", "CompositePodGroup"}, {"podgroups", "PodGroup"},
	{"resourceclaims", "ResourceClaim"}, {"pods", "Pod"},
}

// Play yields the events of the played kinds in the sessions, in order of time, as watches would
// have shown them. It stops after yielding an error. The consumer owns the objects.
func Play(dir string, sessions []Session) iter.Seq2[Step, error] {
	return func(yield func(Step, error) bool) {
		for i := range sessions {
			if err := playSession(dir, &sessions[i], yield); err != nil {
				if !errors.Is(err, errEnough) {
					yield(Step{}, err)
				}
				return
			}
		}
	}
}

// playSession plays one session: its objects first, and then its changes.
func playSession(dir string, s *Session, yield func(Step, error) bool) error {
	if err := s.checkFolder(dir); err != nil {
		return err
	}

	tell := func(step Step) error {
		// The consumer has left its loop, and must not be called again.
		if !yield(step, nil) {
			return errEnough
		}
		return nil
	}

	// Anything may have happened between two sessions, so consumers start over.
	if err := tell(Step{At: s.Began.Time, Begins: true}); err != nil {
		return err
	}
	for _, of := range played {
		err := readList(dir, filepath.Join(s.Folder, of.resource+".json"), func(text []byte) error {
			o, _, err := decodeObject(text)
			if err != nil {
				return err
			}
			return tell(Step{At: s.Began.Time, Object: o})
		})
		if err != nil {
			return err
		}
	}

	if err := tell(Step{At: s.Began.Time, Began: true}); err != nil {
		return err
	}
	// Replay all changes: the end in the index may be older than the last change.
	return replaySession(dir, s.Folder, s.Until.Add(time.Hour), func(c *Change) error {
		o, kind, err := decodeObject(c.Object)
		if err != nil || !slices.ContainsFunc(played, func(of struct{ resource, kind string }) bool { return of.kind == kind }) {
			return err
		}
		return tell(Step{At: c.At.Time, Object: o, Gone: c.Type != "Set"})
	})
}

// decodeObject decodes an API object of any kind, and returns its kind.
func decodeObject(text []byte) (o metav1.Object, kind string, err error) {
	var object runtime.Object
	if object, _, err = scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil); err != nil {
		return nil, "", err
	}
	o, ok := object.(metav1.Object)
	if !ok {
		return nil, "", errors.New("an object without a name")
	}
	return o, object.GetObjectKind().GroupVersionKind().Kind, nil
}
