// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

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
