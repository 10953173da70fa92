// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// answering is the environment variable that makes the test binary the server of BenchmarkWrites,
// so that the CPU time of the server is not included in the measurement.
const answering = "BERTH_BENCH_ANSWERS"

// answerUntilEOF serves POST requests over TLS, like an API server, until its standard input ends.
func answerUntilEOF() {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		w.Header().Set("Audit-Id", "11111111-2222-3333-4444-555555555555")
		w.Header().Set("Cache-Control", "no-cache, private")
		w.WriteHeader(http.StatusCreated)
		if !strings.HasSuffix(r.URL.Path, "/binding") { // an event is returned as the response
			_, _ = w.Write(body)
		}
	}))
	s.StartTLS()
	fmt.Println(s.URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// BenchmarkWrites measures the CPU time for writing the binding and the event of a pod to a server
// in another process.
func BenchmarkWrites(b *testing.B) {
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), answering+"=1")
	input, err := server.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	output, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = input.Close(); _ = server.Wait() }()
	url, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	config := &rest.Config{Host: strings.TrimSpace(url), TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
	config.NextProtos, config.Dial = []string{"http/1.1"}, (&net.Dialer{}).DialContext
	const writers = 32
	connect.KeepIdle(config, writers+eventlog.Writers)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	post, err := newPoster(client, client, "", "bench")
	if err != nil {
		b.Fatal(err)
	}
	events := eventlog.New(client, "default-scheduler")
	var written atomic.Int64
	events.Busy = func() bool { return false }
	events.Create = func(ctx context.Context, e *v1.Event) error { defer written.Add(1); return post.postEvent(ctx, e) }
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go events.Run(ctx)

	var next atomic.Int64
	write := func() {
		for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
			name := fmt.Sprintf("app-7f9c8d6b5-%05d", i)
			within, cancel := context.WithTimeout(ctx, readWithin)
			err := post.postBinding(within, &v1.Binding{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))},
				Target:     v1.ObjectReference{Kind: "Node", Name: "node-1"},
			})
			if cancel(); err != nil {
				b.Error(err)
			}
			events.Record(eventlog.Event{
				Regarding: v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: name, APIVersion: "v1"}, Type: v1.EventTypeNormal,
				Reason: "Scheduled", Message: "Successfully assigned default/" + name + " to node-1", Once: true,
			})
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime(b)
	var workers sync.WaitGroup
	for range writers {
		workers.Go(write)
	}
	workers.Wait()
	for written.Load() < int64(b.N) { // polled at long intervals, because polling uses CPU time
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N)/1e3, "cpu-µs/pod")
}
