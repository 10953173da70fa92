// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// stream decodes the events of a watch. It implements [watch.Decoder].
type stream struct {
	body  io.ReadCloser
	from  *bufio.Reader
	json  *json.Decoder // nil until the first event has shown that the events are in JSON
	frame []byte        // an encoded event, reused
	event metav1.WatchEvent
	// heartbeats, if set, recognizes events to be reduced to bookmarks.
	heartbeats *heartbeats
}

// openWatch opens a watch. Unlike client-go's, it decodes events as described at decode.
func openWatch(ctx context.Context, request *rest.Request, h *heartbeats) (watch.Interface, error) {
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	if h != nil {
		h.has = false // it is unknown whether the last event of the previous watch was processed
	}
	reporter := apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")
	return watch.NewStreamWatcher(&stream{body: body, from: bufio.NewReader(body), heartbeats: h}, reporter), nil
}

// Close implements [watch.Decoder].
func (s *stream) Close() { _ = s.body.Close() }

// Decode implements [watch.Decoder].
func (s *stream) Decode() (watch.EventType, runtime.Object, error) {
	if err := s.readEvent(); err != nil {
		return "", nil, err
	}
	text := s.event.Object.Raw
	if s.heartbeats != nil && s.heartbeats.unchanged(s.event.Type, text) {
		unknown, _ := envelope(text)
		version := string(field(field(field(unknown, 2), metadataField), versionField))
		return watch.Bookmark, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}, nil
	}
	object, err := decodeAny(text)
	return watch.EventType(s.event.Type), object, err
}

// readEvent reads the next event. In the protobuf format, the length of an event precedes it, in
// four bytes of which the first is 0; an event in JSON begins with a brace.
func (s *stream) readEvent() error {
	if s.json == nil && s.frame == nil {
		if first, err := s.from.Peek(1); err != nil {
			return err
		} else if first[0] != 0 {
			s.json = json.NewDecoder(s.from)
		}
	}
	if s.json != nil {
		s.event = metav1.WatchEvent{}
		return s.json.Decode(&s.event)
	}

	var header [4]byte
	if _, err := io.ReadFull(s.from, header[:]); err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint32(header[:]))
	if size > mostOfPage {
		return fmt.Errorf("an event of %d bytes", size)
	}
	if size > cap(s.frame) {
		s.frame = make([]byte, size)
	}
	s.frame = s.frame[:size]
	if _, err := io.ReadFull(s.from, s.frame); err != nil {
		return err
	}
	return s.event.Unmarshal(s.frame)
}
