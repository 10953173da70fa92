// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
)

// TestMain makes outputs independent of a command's duration. With asCommand the test binary runs
// berth itself.
func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	print.MeterAfter = time.Hour
	os.Exit(m.Run())
}

// TestProgressOnATerminal verifies that a slow command shows its progress on a terminal and clears
// it at the end. Other outputs receive lines.
func TestProgressOnATerminal(t *testing.T) {
	after, every := print.MeterAfter, print.MeterEvery
	print.MeterAfter, print.MeterEvery = 0, time.Hour
	t.Cleanup(func() { print.MeterAfter, print.MeterEvery = after, every })
	town := file(t, "town.yaml", smallTown)
	for args, want := range map[string]string{
		"explain pod/big":         "explaining big",
		"explain -l !none":        "explaining 2 of 2 pods",
		"pending":                 "asking about the cluster",
		"capacity":                "asking about the cluster",
		"what-if cordon node-1":   "forecasting",
		"rebalance":               "planning moves",
		"evictions":               "loading the cluster",
		"simulate --for 10m":      "simulating",
		"what-if uncordon node-1": "reading",
	} {
		var out, shown, piped screen
		words := append(strings.Fields(args), "-f", town)
		if code := runCommand(context.Background(), append([]string{"berth"}, words...), &out, answer.Terminal{Writer: &shown, Width: 80}); code != 0 {
			t.Errorf("%s: exit code %d: %s", args, code, shown.String())
		}
		runCommand(context.Background(), append([]string{"berth"}, words...), &out, &piped)
		text := shown.String()
		if !strings.Contains(text, "berth: ") || !strings.Contains(text, want) {
			t.Errorf("%s: no %q in %q", args, want, text)
		}
		if last := text[strings.LastIndex(text, "\r"):]; strings.Contains(last, "berth: ") {
			t.Errorf("%s: the line is left: %q", args, last)
		}
		if text := piped.String(); strings.ContainsAny(text, "\r\x1b") {
			t.Errorf("%s: written to a pipe: %q", args, text)
		}
	}
}

// TestPodsThatAreAlikeAreExplainedOnce verifies that identical pods of a workload share one
// explanation: with thousands of nodes, an explanation takes a quarter of a second.
func TestPodsThatAreAlikeAreExplainedOnce(t *testing.T) {
	after, every := print.MeterAfter, print.MeterEvery
	print.MeterAfter, print.MeterEvery = 0, time.Hour
	t.Cleanup(func() { print.MeterAfter, print.MeterEvery = after, every })
	town := smallTown
	for i := range 20 {
		cpu := 3 + i/19 // the last pod belongs to another workload
		town += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: web-%d, uid: web-%[1]d, resourceVersion: "1", creationTimestamp: "2026-01-01T00:00:00Z", labels: {app: web}}
spec: {schedulerName: default-scheduler, priority: 0, containers: [{name: c, image: i, resources: {requests: {cpu: "%d"}}}]}
`, i, cpu)
	}
	var out, shown screen
	words := []string{"berth", "explain", "-l", "app=web", "-f", file(t, "town.yaml", town)}
	if code := runCommand(t.Context(), words, &out, answer.Terminal{Writer: &shown, Width: 80}); code != 0 {
		t.Fatal(code, shown.String())
	}
	for i := 1; i <= 20; i++ {
		said := fmt.Sprintf("explaining %d of 20 pods", i)
		if explained := strings.Contains(shown.String(), said); explained != (i == 1 || i == 20) {
			t.Errorf("%s: %t, want one of each kind", said, explained)
		}
	}
	if text := out.String(); !strings.Contains(text, "20 pods, 20 pending") || !strings.Contains(text, "The same holds for default/web-1,") {
		t.Error(text)
	}
}

// TestProgressOfALiveCluster verifies that commands show progress until the cluster responds, even
// if it refuses the request.
func TestProgressOfALiveCluster(t *testing.T) {
	after, every := print.MeterAfter, print.MeterEvery
	print.MeterAfter, print.MeterEvery = 0, time.Hour
	t.Cleanup(func() { print.MeterAfter, print.MeterEvery = after, every })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/api/v1/nodes" {
			_, _ = io.WriteString(w, `{"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "node-1", "uid": "1"}}]}`)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`)
	}))
	defer server.Close()
	scheduler := file(t, "scheduler.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
	for args, want := range map[string]string{
		"pending -A":           "reading",
		"explain pod/web":      "reading",
		"what-if drain node-1": "reading",
		"rebalance --execute --config " + scheduler: "planning moves",
		"check": "checking the cluster",
	} {
		var out, shown screen
		words := strings.Fields(liveConfig(t, server.URL).Replace(args + " CONF"))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		runCommand(ctx, append([]string{"berth"}, words...), &out, answer.Terminal{Writer: &shown, Width: 80})
		cancel()
		text := shown.String()
		if !strings.Contains(text, "berth: ") || !strings.Contains(text, want) {
			t.Errorf("%s: no %q in %q", args, want, text)
		}
		if at := strings.LastIndex(text, "\x1b[K"); at < 0 || strings.Contains(text[at:], want) {
			t.Errorf("%s: the line is left: %q", args, text)
		}
	}
}

// TestProgressOfARecording verifies that reading a recording shows progress, then its size.
func TestProgressOfARecording(t *testing.T) {
	after, every := print.MeterAfter, print.MeterEvery
	print.MeterAfter, print.MeterEvery = 0, time.Hour
	t.Cleanup(func() { print.MeterAfter, print.MeterEvery = after, every })
	api := apitest.New(t)
	api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-1", "uid": "1"}})
	var out, shown, piped screen
	words := strings.Fields(liveConfig(t, api.Config.Host).Replace("berth record --once CONF -o"))
	if code := runCommand(t.Context(), append(words, filepath.Join(t.TempDir(), "a")), &out, answer.Terminal{Writer: &shown, Width: 80}); code != 0 {
		t.Fatalf("exit code %d: %s", code, shown.String())
	}
	text := shown.String()
	for _, want := range []string{"berth: reading the cluster", "record: 2 objects, 0 changes; Ctrl-C ends it"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	if !strings.HasSuffix(text, "\r\x1b[K") {
		t.Errorf("the line is left: %q", text)
	}
	print.MeterAfter = time.Hour
	runCommand(t.Context(), append(words, filepath.Join(t.TempDir(), "b")), &out, &piped)
	if text := piped.String(); text != "" {
		t.Errorf("written to a pipe: %q", text)
	}
	if !strings.HasSuffix(out.String(), "b: 2 objects, 0 changes\n") {
		t.Errorf("%q", out.String())
	}
}

// TestProgressOfUp verifies that berth up shows its startup on one line of a terminal, and line by
// line elsewhere.
func TestProgressOfUp(t *testing.T) {
	controlplane := file(t, "berth-controlplane", "#!/bin/sh\necho reading the data\necho compacting\nexit 1\n")
	if err := os.Chmod(controlplane, 0o700); err != nil {
		t.Fatal(err)
	}
	words := []string{"berth", "up", "--controlplane", controlplane, "--data-dir"}
	var shown, piped, errs screen
	if code := runCommand(t.Context(), append(words, filepath.Join(t.TempDir(), "a")), answer.Terminal{Writer: &shown, Width: 80}, &errs); code != 1 {
		t.Errorf("exit code %d", code)
	}
	const line = "controlplane: reading the data\r\x1b[Kcontrolplane: compacting"
	if text := shown.String(); !strings.Contains(text, line) || strings.Contains(text, "\n") {
		t.Errorf("%q", text)
	}
	runCommand(t.Context(), append(words, filepath.Join(t.TempDir(), "b")), &piped, &errs)
	if text := piped.String(); !strings.Contains(text, "controlplane: reading the data\ncontrolplane: compacting\n") || strings.ContainsAny(text, "\r\x1b") {
		t.Errorf("%q", text)
	}
}

// TestProgressOfABuild verifies that the first build, which takes minutes, counts the packages on a
// terminal, and prints only the output of go build in a pipe.
func TestProgressOfABuild(t *testing.T) {
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("script, which makes a terminal for a command, is not installed")
	}
	compile, err := filepath.Abs("../../hack/compile.sh")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Dir(file(t, "go", `#!/bin/sh
case " $* " in *" -v "*) printf 'internal/abi\nk8s.io/api/core/v1\n' >&2;; esac
[ "$FAIL" = "" ] || { echo './x.go:1: broken' >&2; exit 1; }
`))
	if err := os.Chmod(filepath.Join(bin, "go"), 0o700); err != nil {
		t.Fatal(err)
	}
	build := func(env string, argv ...string) (string, error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), env)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	onTerminal := []string{script, "-qec", compile + " ./...", "/dev/null"}
	out, err := build("FAIL=", onTerminal...)
	if want := "\r\x1b[K    1 packages: internal/abi\r\x1b[K    2 packages: k8s.io/api/core/v1\r\x1b[K"; err != nil || out != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
	if out, err = build("FAIL=1", onTerminal...); err == nil || !strings.Contains(out, "\r\x1b[K./x.go:1: broken\r\n") {
		t.Errorf("a build that fails: %v: %q", err, out)
	}
	if out, err = build("FAIL=", compile, "./..."); err != nil || out != "" {
		t.Errorf("in a pipe: %v: %q", err, out)
	}
}

// TestANamespacesAdminGetsThePodsOwnStatus verifies that a caller permitted to read the pod but not
// the cluster gets an error with the required role and the scheduler's message.
func TestANamespacesAdminGetsThePodsOwnStatus(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/api/v1/namespaces/shop/pods/web" {
			_, _ = io.WriteString(w, `{"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": "web"}, "status": {"conditions": [{"type": "PodScheduled",
				"status": "False", "message": "0/7 nodes are available", "lastTransitionTime": "2026-11-20T10:00:00Z"}]}}`)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}`)
	}))
	defer server.Close()
	var out, errs bytes.Buffer
	words := strings.Fields(liveConfig(t, server.URL).Replace("berth explain pod/web CONF"))
	if code := runCommand(t.Context(), words, &out, &errs); code != exitFailed {
		t.Fatal(code, out.String())
	}
	for _, want := range []string{"--clusterrole=berth-view", "status of pod shop/web, 2026-11-20 10:00:00Z: 0/7 nodes are available"} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("no %q in %s", want, errs.String())
		}
	}
}
