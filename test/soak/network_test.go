// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bufio"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// far is a fake API server behind a network. It counts requests, and sends the strings in news to
// watches.
type far struct {
	*testing.T
	*network
	asked   atomic.Int32
	news    chan string
	client  *http.Client
	deleted []string
}

func newFar(t *testing.T) *far {
	f := &far{T: t, news: make(chan string)}
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		if watchedResource(r) == "" {
			fmt.Fprint(w, "done")
			return
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for {
			select {
			case text := <-f.news:
				fmt.Fprintln(w, text)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	api.EnableHTTP2 = true
	api.Config.ErrorLog = quiet
	api.StartTLS()
	t.Cleanup(func() { api.CloseClientConnections(); api.Close() })
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	var err error
	f.network, err = newNetwork(&rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}},
		rand.New(rand.NewPCG(1, 1)), newCounts(), func(pod string) { f.deleted = append(f.deleted, pod) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.network.close)
	f.client = f.network.server.Client()
	return f
}

func (f *far) request(method, path string) (int, string, error) {
	r, err := http.NewRequestWithContext(f.Context(), method, f.network.server.URL+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := f.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

func (f *far) watch() *http.Response {
	f.Helper()
	r, err := http.NewRequestWithContext(f.Context(), http.MethodGet, f.network.server.URL+"/api/v1/pods?watch=true", nil)
	if err != nil {
		f.Fatal(err)
	}
	response, err := f.client.Do(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { response.Body.Close() })
	return response
}

func TestRequestsFareAsTheWeatherIs(t *testing.T) {
	for _, c := range []struct {
		name                   string
		weather                weather
		arrives, answered, bad bool
	}{
		{"fine", weather{}, true, true, false},
		{"refused", weather{refused: 1}, false, true, true},
		{"lost", weather{lost: 1}, false, false, true},
		{"not answered", weather{unanswered: 1}, true, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFar(t)
			f.setWeather(c.weather)
			code, body, err := f.request(http.MethodPut, "/api/v1/nodes/n")
			if f.asked.Load() > 0 != c.arrives || (err == nil) != c.answered || (body != "done") != c.bad || c.bad && c.answered && code < 400 {
				t.Errorf("asked %d times, answered %d %q, %v", f.asked.Load(), code, body, err)
			}
		})
	}
}

func TestPartitionLetsNothingThroughUntilItEnds(t *testing.T) {
	f := newFar(t)
	if _, _, err := f.request(http.MethodGet, "/api/v1/pods"); err != nil {
		t.Fatal(err)
	}
	f.wire.blockAll()
	done := make(chan error, 1)
	go func() {
		_, _, err := f.request(http.MethodGet, "/api/v1/pods")
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("went through a partition: %v", err)
	case <-time.After(200 * time.Millisecond): // wait a fixed time: no event is expected
	}
	if n := f.asked.Load(); n != 1 {
		t.Errorf("asked %d times, want 1", n)
	}
	f.wire.open()
	if err := <-done; err != nil {
		t.Errorf("after the partition: %v", err)
	}
}

func TestRefusedConnectionsAreErrorsUntilTheyAreTaken(t *testing.T) {
	f := newFar(t)
	f.wire.refuseAll()
	if _, _, err := f.request(http.MethodPost, "/api/v1/pods"); err == nil {
		t.Error("went through")
	}
	f.wire.open()
	if _, body, err := f.request(http.MethodGet, "/api/v1/pods"); err != nil || body != "done" {
		t.Errorf("after it: %q, %v", body, err)
	}
}

func TestWatchIsCutAndToldToList(t *testing.T) {
	f := newFar(t)
	watch := f.watch()
	f.news <- "a"
	lines := bufio.NewReader(watch.Body)
	if text, err := lines.ReadString('\n'); text != "a\n" {
		t.Fatalf("%q, %v", text, err)
	}
	f.cutWatches("nodes", true) // watches of another resource
	f.news <- "b"
	if text, err := lines.ReadString('\n'); text != "b\n" {
		t.Fatalf("%q, %v", text, err)
	}
	f.cutWatches("pods", true)
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("the watch goes on")
	}
	if code := f.watch().StatusCode; code != http.StatusGone {
		t.Errorf("the next watch: %d, want 410", code)
	}
	if code := f.watch().StatusCode; code != http.StatusOK {
		t.Errorf("the one after that: %d, want 200", code)
	}
}

func TestStalledWatchShowsAllAtTheEnd(t *testing.T) {
	f := newFar(t)
	lines := bufio.NewReader(f.watch().Body)
	f.news <- "a"
	if text, _ := lines.ReadString('\n'); text != "a\n" {
		t.Fatal(text)
	}
	stalling, end := context.WithCancel(t.Context())
	go f.stallWatches(stalling, "pods", time.Hour)
	for f.watchesOf("pods")[0].gate.waitOpen(closed) {
		runtime.Gosched() // wait until the gate is closed
	}
	f.news <- "b"
	shown := make(chan string, 1)
	go func() {
		text, _ := lines.ReadString('\n')
		shown <- text
	}()
	select {
	case text := <-shown:
		t.Errorf("shown while the watch was stalled: %q", text)
	case <-time.After(200 * time.Millisecond): // wait a fixed time: no event is expected
	}
	end()
	if text := <-shown; text != "b\n" {
		t.Error(text)
	}
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func TestDeletionsAreTold(t *testing.T) {
	f := newFar(t)
	for _, r := range [][2]string{
		{http.MethodDelete, "/api/v1/namespaces/a/pods/x"},
		{http.MethodPost, "/api/v1/namespaces/b/pods/y/eviction"},
		{http.MethodPost, "/api/v1/namespaces/c/pods/z/binding"},
		{http.MethodDelete, "/api/v1/namespaces/d/configmaps/x"},
		{http.MethodGet, "/api/v1/namespaces/e/pods/x"},
	} {
		if _, _, err := f.request(r[0], r[1]); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(f.deleted, " "); got != "a/x b/y" {
		t.Errorf("told of %q", got)
	}
}
