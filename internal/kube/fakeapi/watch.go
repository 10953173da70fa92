// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// watcher is an open watch. Its goroutine writes to a pipe; the other end is the body of the
// response.
type watcher struct {
	table *table
	more  chan struct{} // has an element if there may be new changes
	over  chan struct{}
	ended bool // guarded by the server's lock, like the closing of the channel over
}

// wakeUp makes the watch check for changes. It never blocks.
func (w *watcher) wakeUp() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// endWatch ends the watch on the server's side. It may be called more than once. The server's lock
// is held.
func (w *watcher) endWatch() {
	if !w.ended {
		w.ended = true
		close(w.over)
	}
}

// startWatch responds with a stream of the changes after the client's version. If that version was
// dropped, it responds with 410, so that the client lists again. There are no bookmarks.
func (s *Server) startWatch(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[parsePath(r.URL.Path).resource]
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil || from < t.floor {
		return failureResponse(r, apierrors.NewResourceExpired("too old resource version")), nil
	}

	w := &watcher{table: t, more: make(chan struct{}, 1), over: make(chan struct{})}
	s.watchers[w] = true
	timeout := time.Hour
	if seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds")); err == nil {
		timeout = time.Duration(seconds) * time.Second
	}

	reader, writer := io.Pipe()
	go s.showChanges(r, w, writer, from, timeout)
	w.wakeUp()
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200", Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: reader, ContentLength: -1,
	}, nil
}

// showChanges writes all changes after a version until the watch ends because of its timeout, the
// client, or Cut. A client that does not read delays only its own watch.
func (s *Server) showChanges(r *http.Request, w *watcher, into *io.PipeWriter, from int, timeout time.Duration) {
	defer into.Close()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	}()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case <-w.more:
		case <-w.over:
			return
		case <-timer.C:
			return
		case <-r.Context().Done():
			return
		}
		for _, c := range s.changesSince(w, from) {
			line, err := json.Marshal(map[string]any{"type": c.kind, "object": c.object})
			if err != nil {
				panic(err)
			}
			if _, err := into.Write(append(line, '\n')); err != nil {
				return
			}
			from = c.version
		}
	}
}

// changesSince returns the changes after a version, except for held changes. For an ended watch it
// returns none, because changes may have been dropped.
func (s *Server) changesSince(w *watcher, version int) []change {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := w.table
	if w.ended {
		return nil
	}
	first, _ := slices.BinarySearchFunc(t.log, version+1, func(c change, v int) int { return c.version - v })
	changes := t.log[first:]
	if t.held >= 0 {
		last, _ := slices.BinarySearchFunc(changes, t.held+1, func(c change, v int) int { return c.version - v })
		changes = changes[:last]
	}
	return slices.Clone(changes)
}
