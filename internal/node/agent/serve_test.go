package agent

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/berth-k8s/berth/internal/node/agent/cri"
	"github.com/berth-k8s/berth/internal/node/agent/pressure"
)

// exposition of the agent's /metrics.
func exposition(t *testing.T, n *node) string {
	t.Helper()
	families, err := n.metrics().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

// What dashboards of nodes read follows what the agent does.
func TestMetricsOfAPod(t *testing.T) {
	pod := boundPod("p")
	n, ctx := newNode(t, pod)
	n.images.images = map[string]bool{}
	n.listed.Store(true) // a pod that was there before the agent did not start now
	glancing, stop := context.WithCancel(ctx)
	defer stop()
	n.pods.running.Go(func() { n.glanceAround(glancing) })
	n.podSeen(ctx, pod)
	await(t, "it runs", func() bool { return statusIn(t, n.api, "p").Phase == v1.PodRunning })
	for _, want := range []string{
		"kubelet_started_pods_total 1\n", "kubelet_pod_start_duration_seconds_count 1\n", `kubelet_runtime_operations_total{operation_type="run_podsandbox"} 1`,
		`kubelet_running_containers{container_state="running"} 1`, "kubelet_running_pods 1\n", `kubelet_node_name{node="node-1"} 1`,
		`kubelet_pod_worker_duration_seconds_count{operation_type="sync"}`, `kubelet_started_containers_total{container_type="container"} 1`,
		`kubelet_image_pull_duration_seconds_count{image_size_in_bytes="0-10MB"} 1`, `kubelet_run_podsandbox_duration_seconds_count{runtime_handler=""} 1`,
		`kubelet_active_pods{static=""} 1`,
	} {
		await(t, want, func() bool { return strings.Contains(exposition(t, n), want) })
	}
	for range 2 { // it ends once
		if err := n.evict(ctx, pressure.Eviction{Pod: pod, Signal: "memory.available"}); err != nil {
			t.Fatal(err)
		}
	}
	if want := `kubelet_evictions{eviction_signal="memory.available"} 1`; !strings.Contains(exposition(t, n), want) {
		t.Errorf("no %s", want)
	}
	await(t, "the runtime was listed twice", func() bool {
		text := exposition(t, n)
		return !strings.Contains(text, "kubelet_pleg_relist_interval_seconds_count 0\n") && !strings.Contains(text, "kubelet_pleg_relist_duration_seconds_count 0\n")
	})
}

// /healthz is served to anybody, also when the port gets free only later, and nothing else is.
func TestHealthzPort(t *testing.T) {
	n, ctx := newNode(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.config.HealthzPort = taken.Addr().(*net.TCPAddr).Port
	serving, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { n.serveHealthz(serving); close(ended) }()
	n.health.begin(time.Now())
	n.health.answer(time.Now(), cri.State{})
	taken.Close()
	get := func(path string) (int, string) {
		response, err := http.Get("http://" + taken.Addr().String() + path)
		if err != nil {
			return 0, ""
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	await(t, "it is healthy", func() bool { code, body := get("/healthz"); return code == http.StatusOK && body == "ok" })
	if code, _ := get("/healthz/runtime"); code != http.StatusOK {
		t.Errorf("one check: %d", code)
	}
	if code, _ := get("/pods"); code != http.StatusNotFound {
		t.Errorf("another path: %d", code)
	}
	stop()
	<-ended
}

// TestTheAPIIsServedAtTheNodesAddress, and not at all of the machine's, unless another is named.
func TestTheAPIIsServedAtTheNodesAddress(t *testing.T) {
	for _, c := range []struct{ named, want net.IP }{{nil, net.IPv4(192, 0, 2, 7)}, {net.IPv4zero, net.IPv4zero}} {
		a, err := New(Config{NodeName: "n", NodeIPs: []net.IP{net.IPv4(192, 0, 2, 7), net.ParseIP("2001:db8::7")}, Address: c.named}, &rest.Config{Host: "http://127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		if !a.config.Address.Equal(c.want) {
			t.Errorf("--address %v: at %v, want %v", c.named, a.config.Address, c.want)
		}
	}
}

// With --tls-cert-file the agent serves that certificate, and makes none of its own.
func TestConfiguredCertificateIsTheOnlyOne(t *testing.T) {
	n, _ := newNode(t)
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("configured", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n.config.TLSCert, n.config.TLSKey = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, content := range map[string][]byte{n.config.TLSCert: certPEM, n.config.TLSKey: keyPEM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newest, err := n.certificate()
	if err != nil {
		t.Fatal(err)
	}
	if served, err := newest(nil); err != nil || served.Leaf.Subject.CommonName[:10] != "configured" {
		t.Errorf("served is %v, %v", served, err)
	}
	if _, err := os.Stat(filepath.Join(n.config.RootDir, "pki")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder for a certificate that is not used: %v", err)
	}
}
