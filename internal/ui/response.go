// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"net/http"
	"path"
	"strings"
	"time"
)

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
	writeJSON(w, status, map[string]string{"error": message})
}

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
