// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/ui/changefeed"
)

const (
	// beat is the interval between events if there are no changes. The page considers a connection
	// lost after a longer silence.
	beat = 5 * time.Second
	// writeWithin is the time for a page to read the sent data. A hanging page is disconnected and
	// reconnects later.
	writeWithin = 20 * time.Second
	// mostHeld bounds the streams of one browser over HTTP/1.1. Browsers open six connections per
	// host; without the bound, six tabs would leave no connection for requests.
	mostHeld = 2
)

// serveStream sends the state, and then the changes, as server-sent events:
//
//	state  everything, a model.Delta with fresh
//	delta  the changes since then
//	watch  the connection to the API server, a changefeed.Watches
//	beat   the time
//	end    the response ends here; the browser sends another request after a second
//
// A response ends after the pending changes if the request has the parameter "once", which hidden
// tabs set, or if the browser already holds mostHeld streams.
//
// State and delta have IDs. A page that reconnects with its last ID continues from there, if the
// log reaches back that far. For example, after a connection loss of a minute:
//
//	GET /api/stream, Last-Event-ID: 3fa9c1d2e4b0-517
//	id: 3fa9c1d2e4b0-518, event: delta
//	id: 3fa9c1d2e4b0-519, event: delta
//
// After a restart of this process the ID has another prefix, and the response begins with state.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		writeError(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages are open, which is the most", mostStreams))
		return
	}
	once := r.URL.Query().Has("once")
	if !once && r.ProtoMajor < 2 {
		if release := s.hold(r); release == nil {
			once = true
		} else {
			defer release()
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := &events{w: w, control: http.NewResponseController(w)}
	// The browser reconnects after a second.
	out.writeText("retry: 1000\n\n")
	after := s.lastPosition(r)
	var shown changefeed.Watches
	first := true
	silence := time.NewTicker(beat)
	defer silence.Stop()
	// Each iteration sends the pending changes and waits for more. A page that reads slowly gets
	// larger steps, and eventually the whole state.
	for out.err == nil {
		frames, watches, changed := s.watcher.Read(after)
		if first || !reflect.DeepEqual(watches, shown) {
			out.sendEvent("watch", "", encodeJSON(watches))
			shown, first = watches, false
		}
		for _, f := range frames {
			kind := "delta"
			if f.Fresh {
				kind = "state"
			}
			out.sendEvent(kind, s.epoch+"-"+strconv.FormatUint(f.Seq, 10), f.Data)
			after = f.Seq
		}
		if once && len(frames) == 0 {
			out.sendEvent("end", "", []byte("{}"))
			out.flush()
			return
		}
		// Flush once for all frames.
		out.flush()
		if len(frames) > 0 {
			continue // check for changes made meanwhile
		}
		select {
		case <-changed:
		case now := <-silence.C:
			out.sendEvent("beat", "", encodeJSON(map[string]int64{"now": now.UnixMilli()}))
		case <-r.Context().Done():
			return
		}
	}
}

// hold reserves one of the streams of a browser, recognized by its address and user agent, and
// returns the function that releases the stream. It returns nil if the browser holds mostHeld
// streams already.
func (s *Server) hold(r *http.Request) (release func()) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	browser := host + " " + r.UserAgent()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[browser] >= mostHeld {
		return nil
	}
	s.held[browser]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[browser]--; s.held[browser] == 0 {
			delete(s.held, browser)
		}
	}
}

// lastPosition returns the number of the page's last frame, or 0 if the page has no frame of this
// process. Browsers send the header only on automatic reconnects; the page's own code uses the
// parameter.
func (s *Server) lastPosition(r *http.Request) uint64 {
	id := cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("last"))
	// Ignore a frame number of another process.
	number, ok := strings.CutPrefix(id, s.epoch+"-")
	if !ok {
		return 0
	}
	after, _ := strconv.ParseUint(number, 10, 64)
	return after
}

// encodeJSON encodes a value whose encoding cannot fail.
func encodeJSON(v any) []byte {
	data, _ := json.Marshal(v) // plain data
	return data
}

// events writes server-sent events until a write fails. After an error it does nothing.
type events struct {
	w       http.ResponseWriter
	control *http.ResponseController
	err     error
}

// sendEvent writes one event; without an ID, the page keeps its last ID.
func (e *events) sendEvent(kind, id string, data []byte) {
	e.writeText("event: " + kind + "\n")
	if id != "" {
		e.writeText("id: " + id + "\n")
	}
	e.writeText("data: ")
	if e.err == nil {
		_, e.err = e.w.Write(data) // JSON has no line breaks
	}
	e.writeText("\n\n")
}

// writeText writes a part of an event, which the page must read within writeWithin.
func (e *events) writeText(text string) {
	if e.err != nil {
		return
	}
	if e.err = e.control.SetWriteDeadline(time.Now().Add(writeWithin)); e.err == nil {
		_, e.err = e.w.Write([]byte(text))
	}
}

// flush sends the buffered events.
func (e *events) flush() {
	if e.err == nil {
		e.err = e.control.Flush()
	}
}

// compress compresses responses for clients that accept gzip: the state of 3,000 nodes is a
// megabyte of JSON.
func compress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		packer, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is valid
		defer packer.Close()
		next.ServeHTTP(&compressed{w, packer}, r)
	})
}

// compressed compresses a response. A flush sends everything written before, so that events are
// not delayed.
type compressed struct {
	http.ResponseWriter
	packer *gzip.Writer
}

func (c *compressed) Write(data []byte) (int, error) { return c.packer.Write(data) }

// FlushError implements the flush of http.ResponseController.
func (c *compressed) FlushError() error {
	if err := c.packer.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(c.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController set deadlines.
func (c *compressed) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// writeJSON responds with a document. It ignores write errors.
func writeJSON(w http.ResponseWriter, status int, document any) {
	data, err := json.Marshal(document)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	takeWithin(w, writeWithin)
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

// takeWithin bounds the time for the client to read the response. It ignores the error of a test's
// recorder, which does not support deadlines.
func takeWithin(w http.ResponseWriter, limit time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit))
}

// writeError responds with an error in one line.
func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, fault(message))
}

// fault is the document of an error.
func fault(message string) map[string]string { return map[string]string{"error": message} }

//go:embed page
var page embed.FS

// types maps the extensions of the page's files to content types. Files of other types are not
// served. The list does not depend on the machine's own table, which may differ.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
}

// serveFile serves a file of the page. name may come from the request; only its last element is
// used.
func serveFile(w http.ResponseWriter, name string, status int) {
	data, err := page.ReadFile("page/" + path.Base(name))
	serveData(w, name, status, data, err)
}

// serveLogin serves the form for the token; wrong adds an error message.
func serveLogin(w http.ResponseWriter, wrong bool) {
	data, err := page.ReadFile("page/login.html")
	if wrong {
		data = bytes.Replace(data, []byte(" hidden>"), []byte(">"), 1)
	}
	serveData(w, "login.html", http.StatusUnauthorized, data, err)
}

func serveData(w http.ResponseWriter, name string, status int, data []byte, err error) {
	kind := types[path.Ext(name)]
	if err != nil || kind == "" {
		http.Error(w, "there is nothing here", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", kind)
	takeWithin(w, writeWithin)
	w.WriteHeader(status)
	_, _ = w.Write(data)
}
