// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// informed is a plugin that reads ConfigMaps.
type informed struct{}

func (informed) Name() string                                                         { return "Informed" }
func (informed) Reserve(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status { return nil }
func (informed) Unreserve(context.Context, fwk.CycleState, *v1.Pod, string)           {}

// withSlowServer returns the command with the plugin Informed and an API server that does not
// respond.
func withSlowServer(t *testing.T, factory PluginFactory) *cobra.Command {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(api.Close)
	kubeconfig := write(t, "kubeconfig", fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": [{"name": "c", "context": {"cluster": "c"}}], "clusters": [{"name": "c", "cluster": {"server": %q}}]}`, api.URL))
	file := write(t, "config.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+
		"profiles: [{schedulerName: default-scheduler, plugins: {reserve: {enabled: [{name: Informed}]}}}]\n")
	cmd := NewCommand(WithPlugin("Informed", factory))
	cmd.SetArgs([]string{"--kubeconfig", kubeconfig, "--config", file, "--leader-elect=false", "--secure-port=0", "--health-bind-address=127.0.0.1:0"})
	cmd.SetOut(io.Discard)
	cmd.SilenceErrors = true
	return cmd
}

// TestHealthIsServedWhilePluginsWaitForTheirInformers verifies that health is served while plugins
// wait for a slow API server. Otherwise, the kubelet would repeatedly restart the scheduler.
func TestHealthIsServedWhilePluginsWaitForTheirInformers(t *testing.T) {
	cmd := withSlowServer(t, func(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		h.SharedInformerFactory().Core().V1().ConfigMaps().Informer()
		return informed{}, nil
	})
	said, say := io.Pipe()
	cmd.SetErr(say)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer say.Close()
		_ = cmd.ExecuteContext(ctx)
	}()
	defer func() { stop(); <-ended }()
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		url, ok := strings.CutPrefix(lines.Text(), "health and metrics on ")
		if !ok {
			continue
		}
		go func() { _, _ = io.Copy(io.Discard, said) }()
		client := &http.Client{Timeout: 20 * time.Second}
		for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusInternalServerError} {
			answer, err := client.Get(url + path)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != want {
				t.Errorf("%s: %d, want %d", path, answer.StatusCode, want)
			}
		}
		return
	}
	t.Error("it does not say where its health is")
}

// TestEndWhilePluginsAreMade verifies that a waiting plugin factory returns when its context ends.
func TestEndWhilePluginsAreMade(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	cmd := withSlowServer(t, func(ctx context.Context, _ runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
		stop()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(10 * time.Second):
			return nil, errors.New("its context does not end")
		}
	})
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
