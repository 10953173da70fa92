// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bufio"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// writeCheckpoint updates the folder's own objects, which -f reads, and then the index. It writes
// lists without the lock, so that watches need not wait for the disk; each file is replaced
// atomically, so a reader sees an old or a new list.
func (r *recorder) writeCheckpoint() error {
	at := now()
	r.mu.Lock()
	// The lists hold immutable texts, so they can be written without the lock.
	lists := r.listObjects()
	// listObjects has just counted the objects.
	if r.options.Progress != nil {
		r.options.Progress(r.index.Objects, r.counted)
	}

	r.mu.Unlock()
	if err := writeLists(r.options.Dir, ".", lists); err != nil {
		return err
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	// After an earlier failure, only the lists on disk are newer. The index remains valid.
	if r.failed != nil {
		return r.failed
	}

	// Use the time before the lists were taken: they may be newer than their recorded time, but not
	// older.
	r.index.Source.AsOf = metav1.NewTime(at.Truncate(time.Second))
	// The index must not include buffered changes.
	if err := r.changes.flush(); err != nil {
		return err
	}

	r.lastSession().noteWritten(at, r.changes)
	return r.writeIndex()
}

// writeIndex replaces the index. The caller must hold r.mu.
func (r *recorder) writeIndex() error {
	return replaceFile(r.options.Dir, IndexFile, func(w *bufio.Writer) error {
		text, err := json.MarshalIndent(r.index, "", "  ")
		if err != nil {
			return err
		}
		_, err = w.Write(append(text, '\n'))
		return err
	})
}

// listObjects returns the objects by resource, sorted by name. The caller must hold r.mu.
func (r *recorder) listObjects() map[string][]json.RawMessage {
	lists := map[string][]json.RawMessage{}
	r.index.Objects = 0
	// Sort, so that equal sets of objects give equal files.
	for resource, objects := range r.kinds {
		for _, name := range slices.Sorted(maps.Keys(objects)) {
			lists[resource] = append(lists[resource], objects[name])
		}
		r.index.Objects += len(objects)
	}
	return lists
}

// writeLists writes the objects of each kind into a folder. A kind without objects gets no file.
func writeLists(dir, folder string, lists map[string][]json.RawMessage) error {
	for _, k := range snapshot.Kinds() {
		name := filepath.Join(folder, k.Resource+".json")
		// Remove the list of an earlier checkpoint.
		if len(lists[k.Resource]) == 0 {
			if err := removeInside(dir, name); err != nil {
				return err
			}
			continue
		}
		if err := writeList(dir, name, lists[k.Resource]); err != nil {
			return err
		}
	}
	return nil
}

// sink passes a feed's events of one kind to the recorder. A list replaces all known objects of its
// kind: deletions may have been missed while the watch was interrupted. Only the feed's goroutine
// calls it.
type sink struct {
	*recorder
	kind snapshot.Kind

	there   map[string]bool // objects of the list in progress; nil between lists
	version string          // version of the last list
}

// sink returns the functions called by the feed.
func (s *sink) sink() feed.Sink {
	return feed.Sink{
		Listing: func() { s.there = map[string]bool{} },
		Version: func(version string) { s.version = version },
		Listed:  s.removeUnlisted,
		Seen: func(object runtime.Object) {
			o := object.(metav1.Object)
			// During a list, remember which objects it contains.
			if s.there != nil {
				s.there[o.GetNamespace()+"/"+o.GetName()] = true
			}
			s.setObject(s.kind, o)
		},
		Gone: func(object runtime.Object) {
			o := object.(metav1.Object)
			s.deleteObject(s.kind, o.GetNamespace(), o.GetName())
		},
	}
}

// removeUnlisted removes objects missing from the list. The first list of the last kind makes the
// recorder ready.
func (s *sink) removeUnlisted() {
	s.mu.Lock()
	var gone []string
	for name := range s.kinds[s.kind.Resource] {
		if !s.there[name] {
			gone = append(gone, name)
		}
	}

	// deleteObject takes the lock for each object, so that watches of other kinds proceed in
	// between.
	s.mu.Unlock()
	s.there = nil
	for _, key := range gone {
		namespace, name, _ := strings.Cut(key, "/")
		s.deleteObject(s.kind, namespace, name)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	// The recording begins once every kind has been listed for the first time.
	if s.index.Source.ResourceVersion = s.version; !s.listed[s.kind.Resource] {
		s.listed[s.kind.Resource] = true
		for _, listed := range s.listed {
			if !listed {
				return
			}
		}
		close(s.ready)
	}
}
