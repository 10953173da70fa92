package ui

import (
	"embed"
	"net/http"
	"path"
)

//go:embed page
var page embed.FS

// types maps the extensions of the page's files to content types. Files of other types are not
// served. They are listed rather than looked up: the machine's own table may differ.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
}

// serveFile serves a file of the page. name may be from the request: only its last element counts.
func serveFile(w http.ResponseWriter, name string, status int) {
	data, err := page.ReadFile("page/" + path.Base(name))
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
