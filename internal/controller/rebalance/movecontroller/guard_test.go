// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// TestAHeldEvictionHasEventsAndADuration verifies that the pod and its workload get an event at the
// beginning and at the end of a replacement, and that the time between is measured.
func TestAHeldEvictionHasEventsAndADuration(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	for _, m := range Metrics() {
		registry.MustRegister(m)
	}
	events := eventlog.New(fake.NewClientset(), "test")
	var lines []string
	events.Create = func(_ context.Context, e *v1.Event) error {
		lines = append(lines, e.InvolvedObject.Kind+"/"+e.InvolvedObject.Name+" "+string(e.InvolvedObject.UID)+" "+e.Reason+": "+e.Message)
		return nil
	}
	began := map[types.UID]time.Time{}
	for _, c := range []struct {
		pod     string
		results []execute.Result
		message string
	}{{"web-1", []execute.Result{execute.Raised, execute.Arrived, execute.Replaced}, "2 replicas"}, {"web-2", []execute.Result{execute.Restored}, "no room"}} {
		pod := &rebalance.Departure{Namespace: "shop", Name: c.pod, UID: types.UID(c.pod), From: "a",
			Surge: &rebalance.Surge{Scaled: rebalance.Scaled{Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}}}
		for _, result := range c.results {
			reportGuard(t.Context(), events, execute.DrainProgress{Pod: pod, Result: result, Message: c.message}, began)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	events.Drain = 10 * time.Second
	cancel() // queued events are still written
	events.Run(ctx)
	want := []string{
		"Pod/web-1 web-1 EvictionHeld: Starts a replacement before the eviction: 2 replicas",
		"Deployment/web d EvictionHeld: Pod web-1: Starts a replacement before the eviction: 2 replicas",
		"Pod/web-1 web-1 Replaced: Leaves a; its replacement is ready", "Deployment/web d Replaced: Pod web-1: Leaves a; its replacement is ready",
		"Pod/web-2 web-2 ReplacementFailed: no room", "Deployment/web d ReplacementFailed: Pod web-2: no room",
	}
	slices.Sort(lines)
	slices.Sort(want)
	if !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var durations uint64
	for _, f := range families {
		if f.GetName() == "berth_eviction_guard_duration_seconds" {
			durations += f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	if durations != 1 || len(began) != 0 {
		t.Errorf("%d durations, want that of web-1; %v", durations, began)
	}
}
