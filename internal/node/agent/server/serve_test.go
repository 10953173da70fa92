package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/kube/guard"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// dial opens a connection as the API server would, without asking anything yet.
func (w *world) dial(t *testing.T) *tls.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", w.address, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*w.authority.client(t, "kube-apiserver")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

func TestSlowClientsAreLetGo(t *testing.T) {
	const short, long = 200 * time.Millisecond, time.Hour
	impatient := func(header, request, idle time.Duration) *world {
		return newWorld(t, func(o *Options) { o.limits.headerTime, o.limits.requestTime, o.limits.idle = header, request, idle }).serve(t)
	}
	t.Run("who says nothing in TLS", func(t *testing.T) {
		w := impatient(short, long, long)
		conn, err := net.Dial("tcp", w.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.ReadAll(conn); isTimeout(err) {
			t.Error("not within 30 s")
		}
	})
	for name, c := range map[string]struct {
		w     *world
		begin string
	}{
		"who says nothing":      {impatient(short, long, long), ""},
		"who stops in a header": {impatient(short, long, long), "GET /pods HTTP/1.1\r\nHost: node\r\nX-Long: a"},
		"who sends no body":     {impatient(long, short, long), "POST /stats/summary HTTP/1.1\r\nHost: node\r\nContent-Length: 100000\r\n\r\n"},
		"who asks nothing more": {impatient(long, long, short), "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := c.w.dial(t)
			_, _ = io.WriteString(conn, c.begin) // it may be too late already
			if _, err := io.ReadAll(conn); isTimeout(err) {
				t.Error("not within 30 s")
			}
		})
	}
	t.Run("who takes nothing", func(t *testing.T) {
		w := impatient(long, short, long)
		w.mu.Lock()
		for range 5000 {
			w.list = append(w.list, web())
		}
		w.mu.Unlock()
		conn := w.dial(t)
		if _, err := io.WriteString(conn, "GET /pods HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the connection is closed", func() bool { return w.connections.Load() == 0 })
	})
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

func TestLargeHeadersAndURLsAreRefused(t *testing.T) {
	w := newWorld(t).serve(t)
	for name, request := range map[string]string{
		"a header": "GET /pods HTTP/1.1\r\nHost: node\r\nX-Large: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"a URL":    "GET /exec/default/web/app?command=" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\nHost: node\r\n\r\n",
		"headers":  "GET /pods HTTP/1.1\r\nHost: node\r\n" + strings.Repeat("X-Some: "+strings.Repeat("x", 100)+"\r\n", 10000) + "\r\n",
	} {
		conn := w.dial(t)
		go func() { _, _ = io.WriteString(conn, request) }()
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s: %s", name, response.Status)
		}
	}
	// A script as long as Linux takes it is not too long: it is refused for another reason.
	script := strings.Repeat("%3B", 128<<10)
	if code, body := w.get(t, w.authority.client(t, "kube-apiserver"), "", "GET", "/exec/default/web/app?output=1&command="+script); code != 400 || !strings.Contains(body, "Upgrade") {
		t.Errorf("a long script: %d %s", code, body)
	}
}

// TestAStrangerSendsLittle: what is sent by nobody knows whom is held until it is known, for each
// of them. Who has shown a certificate of the cluster, or was let in before, may send a long
// command.
func TestAStrangerSendsLittle(t *testing.T) {
	w := newWorld(t).serve(t)
	ask := func(conn *tls.Conn, token string, length int) (code int) {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		go func() {
			_, _ = fmt.Fprintf(conn, "GET /pods HTTP/1.1\r\nHost: node\r\nX-Large: %s\r\nAuthorization: Bearer %s\r\n\r\n",
				strings.Repeat("x", length), token)
		}()
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if isTimeout(err) {
			t.Fatal(err)
		}
		if err != nil {
			return http.StatusBadRequest // closed before the answer was taken
		}
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	dial := func(certificates ...tls.Certificate) *tls.Conn {
		t.Helper()
		conn, err := tls.Dial("tcp", w.address, &tls.Config{InsecureSkipVerify: true, Certificates: certificates})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	strange, known := *newAuthority(t).client(t, "kube-apiserver"), dial()
	for _, c := range []struct {
		name   string
		conn   *tls.Conn
		token  string
		length int
		want   int
	}{
		{"nobody, as much as a token needs", dial(), "none", 20 << 10, http.StatusUnauthorized},
		{"nobody, more", dial(), "none", 100 << 10, http.StatusBadRequest},
		{"with a certificate of another cluster", dial(strange), "none", 100 << 10, http.StatusBadRequest},
		{"with a token that is not read yet", dial(), "good", 100 << 10, http.StatusBadRequest},
		{"with a certificate", w.dial(t), "", 300 << 10, http.StatusOK},
		{"with a token", known, "good", 0, http.StatusOK},
		{"let in before", known, "good", 300 << 10, http.StatusOK},
	} {
		if code := ask(c.conn, c.token, c.length); code != c.want {
			t.Errorf("%s: %d, want %d", c.name, code, c.want)
		}
	}
}

func TestConnectionsAreCounted(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.limits.connections = guard.Bounds{Strangers: 3, PerSource: 3, Admitted: 2} }).serve(t)
	ask := func(conn *tls.Conn) int {
		if _, err := io.WriteString(conn, "GET /pods HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		return response.StatusCode
	}
	// Who was let in stays, whoever else comes.
	in := []*tls.Conn{w.dial(t), w.dial(t)}
	for _, conn := range in {
		if code := ask(conn); code != 200 {
			t.Fatal(code)
		}
	}
	for range 20 {
		w.dial(t)
	}
	eventually(t, "two that are let in and three strangers are left", func() bool { return w.connections.Load() == 5 })
	if code := ask(w.dial(t)); code != http.StatusServiceUnavailable {
		t.Errorf("a third was let in: %d", code)
	}
	for _, conn := range in {
		if code := ask(conn); code != 200 {
			t.Errorf("who was let in is told %d", code)
		}
	}
	_ = in[0].Close()
	eventually(t, "there is room for another", func() bool { return ask(w.dial(t)) == 200 })
}

func TestOldTLSAndHTTP2AreNotSpoken(t *testing.T) {
	w := newWorld(t).serve(t)
	if _, err := tls.Dial("tcp", w.address, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	conn, err := tls.Dial("tcp", w.address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if spoken := conn.ConnectionState().NegotiatedProtocol; spoken != "http/1.1" {
		t.Errorf("%s is spoken: exec could not take over its connection", spoken)
	}
}

type fakeStats struct{ only bool }

func (f *fakeStats) Summary(_ context.Context, cpuAndMemory bool) (*stats.Summary, error) {
	f.only = cpuAndMemory
	return &stats.Summary{Node: stats.NodeStats{NodeName: nodeName, CPU: &stats.CPUStats{UsageNanoCores: ptr.To[uint64](7)}}}, nil
}

func TestReadersGetWhatTheyKnowFromKubelet(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "node_memory_working_set_bytes"}, func() float64 { return 42 }))
	numbers := &fakeStats{}
	fault := errors.New("the runtime is away")
	w := newWorld(t, func(o *Options) {
		o.Stats, o.Metrics = numbers, map[string]prometheus.Gatherer{"/metrics/resource": registry}
		o.Config = func() any { return map[string]any{"maxPods": 110} }
		o.Healthy = map[string]func() error{"syncloop": func() error { return fault }}
	}).serve(t)
	certificate := w.authority.client(t, "kube-apiserver")
	ask := func(method, path string, want int) string {
		t.Helper()
		code, body := w.get(t, certificate, "", method, path)
		if code != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
		return body
	}
	var list v1.PodList
	if err := json.Unmarshal([]byte(ask("GET", "/pods", 200)), &list); err != nil || list.Kind != "PodList" || list.APIVersion != "v1" || len(list.Items) != 1 || list.Items[0].Name != "web" {
		t.Errorf("pods: %+v, %v", list, err)
	}
	w.mu.Lock()
	w.list = nil
	w.mu.Unlock()
	if body := ask("GET", "/pods", 200); !strings.Contains(body, `"items":[]`) {
		t.Errorf("no pods: %s", body)
	}
	var summary struct {
		Node struct {
			NodeName string
			CPU      struct{ UsageNanoCores int }
		}
	}
	if err := json.Unmarshal([]byte(ask("GET", "/stats/summary", 200)), &summary); err != nil || summary.Node.NodeName != nodeName || summary.Node.CPU.UsageNanoCores != 7 || numbers.only {
		t.Errorf("summary: %+v, %v", summary, err)
	}
	if ask("POST", "/stats/summary?only_cpu_and_memory=true", 200); !numbers.only {
		t.Error("all was asked for")
	}
	if body := ask("GET", "/metrics/resource", 200); !strings.Contains(body, "node_memory_working_set_bytes 42") {
		t.Errorf("metrics: %s", body)
	}
	ask("GET", "/metrics/none", 404)
	if body := ask("GET", "/configz", 200); body != `{"kubeletconfig":{"maxPods":110}}` {
		t.Errorf("configz: %s", body)
	}
	if body := ask("GET", "/healthz", 500); !strings.Contains(body, "[-]syncloop failed: the runtime is away") || !strings.Contains(body, "[+]ping ok") {
		t.Errorf("healthz: %s", body)
	}
	ask("GET", "/healthz/ping", 200)
	ask("GET", "/healthz/none", 404)
	fault = nil
	if body := ask("GET", "/healthz", 200); body != "ok" {
		t.Errorf("healthz: %s", body)
	}
}

func TestWhatIsNotThereIsNotServed(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/configz", "/stats/summary", "/metrics", "/run/default/web/app", "/debug/pprof/", "/checkpoint/default/web/app", "/"} {
		if out := w.direct("GET", path, "good"); out.Code != 404 {
			t.Errorf("%s: %d", path, out.Code)
		}
	}
}

func TestServeFailsWithItsListener(t *testing.T) {
	w := newWorld(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	if err := w.Serve(t.Context(), listener); err == nil || !strings.Contains(err.Error(), fmt.Sprint(listener.Addr())) {
		t.Errorf("%v", err)
	}
}

func TestOptionsThatAreMissingAreNamed(t *testing.T) {
	if _, err := New(Options{NodeName: nodeName}); err == nil || !strings.Contains(err.Error(), "Runtime") {
		t.Errorf("%v", err)
	}
}
