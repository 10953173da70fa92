// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
)

// screen is an output that can be read while it is written.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestWatchPrintsWhatHasChanged verifies that --watch reprints changed output, unless only relative
// times have changed.
func TestWatchPrintsWhatHasChanged(t *testing.T) {
	neutral(t)
	api := apitest.New(t)
	node := func(cpu string) apitest.Object {
		return apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-1"},
			"status": map[string]any{"allocatable": map[string]any{"cpu": cpu, "memory": "4Gi", "pods": "110"}}}
	}
	api.Set("nodes", node("1"))
	api.Set("pods", apitest.Object{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "big", "namespace": "default", "uid": "big"},
		"spec": map[string]any{"schedulerName": "default-scheduler", "containers": []any{map[string]any{"name": "c", "image": "i",
			"resources": map[string]any{"requests": map[string]any{"cpu": "2"}}}}}})
	kubeconfig := file(t, "kubeconfig", fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}", api.Config.Host))
	for _, args := range []string{"explain pod/big", "explain -l !none", "pending"} {
		t.Run(args, func(t *testing.T) {
			api.Set("nodes", node("1"))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var out, errs screen
			ended := make(chan int)
			go func() {
				ended <- runCommand(ctx, append([]string{"berth"}, append(strings.Fields(args), "--kubeconfig", kubeconfig, "--watch", "--every", "1s", "-o", "json")...), &out, &errs)
			}()
			lists := func() int { return strings.Count(strings.Join(api.Reads(), "\n"), "/api/v1/nodes") }
			answers := func() int { return strings.Count(out.String(), `"apiVersion": "berth.dev/`) }
			await := func(what string, is func() bool) {
				t.Helper()
				for end := time.Now().Add(20 * time.Second); !is(); {
					if time.Now().After(end) {
						t.Fatalf("not %s:\n%s%s", what, out.String(), errs.String())
					}
					<-time.After(20 * time.Millisecond)
				}
			}
			await("answered", func() bool { return answers() > 0 })
			first, read := answers(), lists()
			await("asked again", func() bool { return lists() >= read+2 })
			if answers() != first {
				t.Errorf("printed again, though nothing has changed:\n%s", out.String())
			}
			api.Set("nodes", node("4"))
			await("answered anew", func() bool { return answers() > first })
			cancel()
			if code := <-ended; code != 0 {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
		})
	}
}

// TestWatchTellsOnceWhatItCannotRead verifies that notes about the output are printed once, not at
// every reading.
func TestWatchTellsOnceWhatItCannotRead(t *testing.T) {
	neutral(t)
	api := apitest.New(t)
	api.Refuse("poddisruptionbudgets", http.StatusForbidden)
	api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-1"}})
	kubeconfig := file(t, "kubeconfig", fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}", api.Config.Host))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var out, errs screen
	ended := make(chan int)
	go func() {
		ended <- runCommand(ctx, []string{"berth", "pending", "--kubeconfig", kubeconfig, "--watch", "--every", "1s"}, &out, &errs)
	}()
	for end := time.Now().Add(20 * time.Second); strings.Count(strings.Join(api.Reads(), "\n"), "/api/v1/nodes") < 3; {
		if time.Now().After(end) {
			t.Fatalf("not asked three times:\n%s%s", out.String(), errs.String())
		}
		<-time.After(20 * time.Millisecond)
	}
	cancel()
	if code := <-ended; code != 0 || strings.Count(errs.String(), "not read: ") != 1 {
		t.Errorf("exit code %d:\n%s", code, errs.String())
	}
}

// TestCtrlCEndsAQuestionUnderWay verifies that Ctrl-C ends a running query without waiting for its
// result.
func TestCtrlCEndsAQuestionUnderWay(t *testing.T) {
	neutral(t)
	asked, over := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(over)
	kubeconfig := file(t, "kubeconfig", fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}", server.URL))
	ended := make(chan int, 1)
	var out, errs screen
	go func() {
		ended <- runCommand(context.Background(), []string{"berth", "pending", "--kubeconfig", kubeconfig, "--watch"}, &out, &errs)
	}()
	<-asked
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-ended:
		if code != 0 {
			t.Errorf("exit code %d: %s", code, errs.String())
		}
	case <-time.After(20 * time.Second):
		t.Error("it goes on waiting for the answer")
	}
}
