// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"embed"
	"net/http"
	"path"
)

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
