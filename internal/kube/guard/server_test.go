// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// TestRequestsHaveDeadlines verifies that a handler does not wait forever for the body of a
// request, or for a caller to read the response.
func TestRequestsHaveDeadlines(t *testing.T) {
	var read, written time.Time
	handler := inTime(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, c := range []struct {
		path, body string
		wantsRead  bool
		take       time.Duration
	}{
		{"/metrics", "", false, takeTime},
		{"/debug/flags/v", "4", true, takeTime},
		{"/debug/pprof/profile?seconds=300", "", false, profileTime},
	} {
		read, written = time.Time{}, time.Time{}
		r, err := http.NewRequest(http.MethodGet, c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		handler.ServeHTTP(&deadlines{read: &read, written: &written}, r)
		if read.IsZero() == c.wantsRead || written.Sub(before) < c.take || written.Sub(before) > c.take+time.Minute {
			t.Errorf("%s: read by %v, written by %v", c.path, read, written)
		}
	}
}

type deadlines struct {
	http.ResponseWriter
	read, written *time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error  { *d.read = t; return nil }
func (d *deadlines) SetWriteDeadline(t time.Time) error { *d.written = t; return nil }

// TestRefusalsCloseTheConnection verifies that refusals close the connection, and have a
// Retry-After header if a retry may succeed.
func TestRefusalsCloseTheConnection(t *testing.T) {
	for code, again := range map[int]string{
		http.StatusUnauthorized: "", http.StatusForbidden: "", http.StatusTooManyRequests: "1", http.StatusServiceUnavailable: "1",
	} {
		w := httptest.NewRecorder()
		Refuse(w, code, "no")
		if w.Code != code || w.Header().Get("Connection") != "close" || w.Header().Get("Retry-After") != again {
			t.Errorf("%d: answered %d with %v", code, w.Code, w.Header())
		}
	}
}

// TestServerIsBoundedAndEnds verifies that the number of connections, and the time and size of
// headers, are bounded, and that all connections end with the server.
func TestServerIsBoundedAndEnds(t *testing.T) {
	if s := Server(nil); s.ReadHeaderTimeout != SendTime || s.IdleTimeout <= 0 || s.IdleTimeout > 5*time.Minute || s.MaxHeaderBytes <= 0 || s.MaxHeaderBytes > 1<<20 {
		t.Errorf("headers within %v and %d bytes, idle for %v", s.ReadHeaderTimeout, s.MaxHeaderBytes, s.IdleTimeout)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	admitted := make(chan bool, 1)
	server := Server(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, bounded := r.Context().Value(bounded{}).(*conn)
		admitted <- bounded
	}))
	go func() { ended <- server.Serve(Bound(l, Ports)) }()
	var open []net.Conn
	for range Ports.PerSource + 1 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	closes := func(c net.Conn) error {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		_, err := io.Copy(io.Discard, c)
		return err
	}
	last := open[len(open)-1] // its request must be sent within SendTime, which has begun
	if _, err := io.WriteString(last, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil || !<-admitted {
		t.Errorf("the connection of a request is not known: %v", err)
	}
	if err := closes(open[0]); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("more connections than the bound are held")
	}
	_ = server.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("ended with %v", err)
	}
	if err := closes(last); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection outlives the server")
	}
}
