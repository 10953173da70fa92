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

	"github.com/berth-k8s/berth/internal/world/virtual"
)

// far is a fake API server behind a network. It counts requests, and sends the strings in news to
// watches.
type far struct {
	*testing.T
	*network
	asked   atomic.Int32
	arrived chan string // the requests
	news    chan string
	client  *http.Client
	deleted []string
}

func newFar(t *testing.T) *far {
	f := &far{T: t, news: make(chan string), arrived: make(chan string, 10)}
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		if r.Method == http.MethodPatch || r.URL.Path == "/api/v1/nodes/n/status" {
			f.arrived <- r.Method + " " + r.URL.Path
		}
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

// TestRequestsHaveTheDrawnFaults verifies what arrives at the API server, and what the client
// receives, for each fault of package virtual.
func TestRequestsHaveTheDrawnFaults(t *testing.T) {
	const patch = "PATCH /api/v1/nodes/n/status"
	for fault, want := range map[virtual.Fault]struct {
		arrives string // the request that arrives at the API server
		status  int    // status of the response; 0 if there is none
	}{
		virtual.None:            {patch, 200},
		virtual.Lost:            {"", 0},
		virtual.Unanswered:      {patch, 0},
		virtual.Belated:         {patch, 0},
		virtual.Forbidden:       {"", 403},
		virtual.Gone:            {"", 404},
		virtual.GoneDone:        {patch, 404},
		virtual.Conflicting:     {"", 409},
		virtual.ConflictingDone: {patch, 409},
		virtual.Busy:            {"", 429},
		virtual.BusyFor:         {"", 429},
		virtual.Ineffective:     {"GET /api/v1/nodes/n/status", 200},
		virtual.Slow:            {patch, 200},
	} {
		t.Run(fault.String(), func(t *testing.T) {
			f := newFar(t)
			f.setRules(false, virtual.Rule{Fault: fault, Chance: 1, Kind: "patch", Delay: time.Second})
			code, _, err := f.request(http.MethodPatch, "/api/v1/nodes/n/status")
			if code != want.status || (err == nil) != (want.status != 0) {
				t.Errorf("the response is %d, %v, want %d", code, err, want.status)
			}
			if want.arrives == "" {
				close(f.arrived)
			}
			if got := <-f.arrived; got != want.arrives {
				t.Errorf("%q arrived, want %q", got, want.arrives)
			}
			if code, _, err := f.request(http.MethodGet, "/api/v1/nodes/n"); code != 200 {
				t.Errorf("another kind of request: %d, %v", code, err)
			}
		})
	}
}

// TestTargetsOfRequests verifies the kinds and objects by which rules select requests.
func TestTargetsOfRequests(t *testing.T) {
	for request, want := range map[string]virtual.Target{
		"GET /api/v1/pods":                                         {Kind: "list pods", Reads: true},
		"GET /api/v1/pods?watch=true":                              {Kind: "watch pods", Reads: true},
		"GET /api/v1/namespaces/a/pods/x":                          {Kind: "get pods", Namespace: "a", Object: "x", Reads: true},
		"GET /api/v1/namespaces/a":                                 {Kind: "get namespaces", Object: "a", Reads: true},
		"POST /api/v1/namespaces/a/pods/x/eviction":                {Kind: "create pods/eviction", Namespace: "a", Object: "x"},
		"PATCH /api/v1/nodes/n/status":                             {Kind: "patch nodes/status", Object: "n"},
		"DELETE /apis/apps/v1/namespaces/a/deployments/d":          {Kind: "delete deployments", Namespace: "a", Object: "d"},
		"PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/one": {Kind: "update leases", Namespace: "a", Object: "one"},
		"GET /readyz": {Kind: "get /readyz", Reads: true},
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := targetOf(httptest.NewRequestWithContext(t.Context(), method, path, nil)); got != want {
			t.Errorf("%s: %+v, want %+v", request, got, want)
		}
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
