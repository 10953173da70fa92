// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"log"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/kube/loglimit"
)

const (
	// SendTime is the time in which a caller must send a request, and takeTime the time in which it
	// must read the response.
	SendTime = 10 * time.Second
	takeTime = 30 * time.Second
	// profileTime replaces takeTime for profiles.
	profileTime = 10 * time.Minute
)

// Server returns an HTTP server with short timeouts, for use with a Listener. It accepts at most 64
// KiB of headers.
func Server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           inTime(handler),
		ReadHeaderTimeout: SendTime,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       ConnContext,
		ErrorLog:          ErrorLog(),
	}
}

// ErrorLog returns a logger for the errors of a server, such as failed TLS handshakes. Any caller
// that reaches the port can cause such errors. Therefore at most one line per [loglimit.Every] is
// logged at level 0, with the number of lines omitted before it. The omitted lines are logged at
// level 4.
func ErrorLog() *log.Logger { return log.New(&errorLog{}, "", 0) }

type errorLog struct {
	line    loglimit.Line
	omitted atomic.Int64
}

// Write logs a line.
func (l *errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line[:min(len(line), longestLine)]))
	if l.line.Due() {
		klog.InfoS("Connection failed", "err", text, "omitted", l.omitted.Swap(0))
	} else {
		l.omitted.Add(1)
		klog.V(4).InfoS("Connection failed", "err", text)
	}
	return len(line), nil
}

// longestLine is the maximum logged length of an error, because net/http quotes the caller's input.
const longestLine = 512

// inTime sets the deadlines of every request. The deadlines are not set on the server, because the
// caller chooses the duration of a profile.
func inTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection, now := http.NewResponseController(w), time.Now()
		if r.Body != nil && r.Body != http.NoBody {
			_ = connection.SetReadDeadline(now.Add(SendTime))
		}
		take := takeTime
		if strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			take = profileTime
		}
		_ = connection.SetWriteDeadline(now.Add(take))
		next.ServeHTTP(w, r)
	})
}
