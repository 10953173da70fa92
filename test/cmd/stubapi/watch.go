// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// watchInterval is the interval at which a watch sends the changes since the last time.
	watchInterval = 5 * time.Millisecond
	// bookmarkInterval is the interval between bookmarks.
	bookmarkInterval = 20 * time.Second
	// mostOfBatch is the maximum number of changes encoded before they are sent.
	mostOfBatch = 256
)

// watch sends the changes of a resource until the client leaves or the requested time has passed.
func (s *server) watch(w http.ResponseWriter, r *http.Request, t target, query url.Values) {
	version, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(max(seconds, 60))*time.Second)
	defer cancel()
	log, e := s.store.logs[t.resource], newEncoder()
	if query.Get("fieldSelector") != "" || t.namespace == "kube-system" {
		log = nil
	}
	if log != nil {
		s.store.mu.Lock()
		kept := version >= log.floor
		s.store.mu.Unlock()
		if !kept {
			fail(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
			return
		}
	}
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
	flusher := http.NewResponseController(w)
	_ = flusher.Flush()

	interval := watchInterval
	if log == nil {
		interval = bookmarkInterval
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	marked, changes, buffer := time.Now(), []change(nil), []byte(nil)
	for {
		buffer = buffer[:0]
		if log != nil {
			var kept bool
			if changes, kept = s.store.changesAfter(log, version, changes[:0]); !kept {
				buffer = appendEvent(buffer, "ERROR", "v1", "Status", &metav1.Status{
					Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone, Message: "too old resource version",
				})
				_, _ = w.Write(buffer)
				return
			}
			buffer = s.appendChanges(buffer, e, t, changes)
			if len(changes) > 0 {
				version = changes[len(changes)-1].version
				s.countMany("SEND "+t.resource, len(changes))
			}
		}
		if len(changes) < mostOfBatch && time.Since(marked) > bookmarkInterval || ctx.Err() != nil {
			marked = time.Now()
			buffer = appendEvent(buffer, "BOOKMARK", t.version, kinds[t.version][t.resource], bookmark(version))
		}
		if len(buffer) > 0 {
			if _, err := w.Write(buffer); err != nil || flusher.Flush() != nil {
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		if len(changes) == mostOfBatch {
			continue
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// changesAfter returns the next changes after the version.
func (s *store) changesAfter(log *changeLog, version int64, into []change) ([]change, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return log.after(version, mostOfBatch, into)
}

// bookmark returns an object with only a version. Every kind has its metadata in field 1.
func bookmark(version int64) marshaler {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.FormatInt(version, 10)}}
}

// appendChanges appends an event for each change.
func (s *server) appendChanges(to []byte, e *encoder, t target, changes []change) []byte {
	for _, c := range changes {
		r := row{index: c.index, node: c.node, version: c.version}
		s.store.mu.Lock()
		switch t.resource {
		case "pods":
			r.pod = s.store.pods[c.index]
			r.batch = s.store.batches[r.pod.batch]
			if r.pod.status > c.version {
				r.pod.status = 0
			}
		case "nodes":
			r.marks, r.renewed = s.store.nodes[c.index].marks, s.store.nodes[c.index].lastBeat()
		case "leases":
			r.renewed = s.store.nodes[c.index].lastRenewal()
		}
		s.store.mu.Unlock()
		kind := "MODIFIED"
		if c.added {
			kind = "ADDED"
		}
		to = appendEvent(to, kind, t.version, kinds[t.version][t.resource], e.encodeRow(t.resource, &r))
	}
	return to
}

// appendEvent appends an event of a watch: its length in four bytes and a WatchEvent, whose object
// has the format of a separate object.
func appendEvent(to []byte, event, version, kind string, o marshaler) []byte {
	from := len(to)
	to = appendField(append(to, 0, 0, 0, 0), 1, []byte(event))
	envelope := appendEnvelope(nil, version, kind)
	size := o.Size()
	raw := len(envelope) + protowire.SizeTag(2) + protowire.SizeBytes(size) // the envelope with the object
	to = protowire.AppendVarint(protowire.AppendTag(to, 2, protowire.BytesType), uint64(protowire.SizeTag(1)+protowire.SizeBytes(raw)))
	to = protowire.AppendVarint(protowire.AppendTag(to, 1, protowire.BytesType), uint64(raw))
	to = appendObject(append(to, envelope...), 2, o)
	binary.BigEndian.PutUint32(to[from:], uint32(len(to)-from-4))
	return to
}
