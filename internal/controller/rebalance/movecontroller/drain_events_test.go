// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
)

// TestAPodThatWaitsHasAnEvent verifies that a waiting pod gets an event for each new message, and
// none for a repeated one.
func TestAPodThatWaitsHasAnEvent(t *testing.T) {
	e := newDrainEvents(fake.NewClientset())
	var mu sync.Mutex
	var lines []string
	e.log.Create = func(_ context.Context, event *v1.Event) error {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, event.InvolvedObject.Name+" "+event.Reason+": "+event.Message)
		return nil
	}
	pod := &rebalance.Departure{Namespace: "shop", Name: "web-0", UID: "1"}
	for _, why := range []string{"the budget allows none", "the budget allows none", "web-1 is not ready"} {
		e.recordEvents(&execute.DrainProgress{Result: execute.Withheld, Waiting: 1, Message: why, Held: []execute.Held{{Pod: pod, Why: why}}})
	}
	for _, result := range []execute.Result{execute.Awaited, execute.Restored} { // with the same message
		e.recordEvents(&execute.DrainProgress{Result: result, Pod: pod, Message: "its successor does not start"})
	}
	e.recordEvents(&execute.DrainProgress{Result: execute.Arrived, Pod: pod, Node: "b"})

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	e.log.Drain = 10 * time.Second
	cancel() // queued events are still written
	e.log.Run(ctx)
	want := []string{"web-0 DrainWaiting: the budget allows none", "web-0 DrainWaiting: web-1 is not ready",
		"web-0 DrainWaiting: its successor does not start", "web-0 SurgeGivenUp: its successor does not start"}
	if !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
}
