// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

var taint = v1.Taint{Key: "a", Value: "x", Effect: v1.TaintEffectNoExecute}

// start runs an evictor against the API until the returned function ends it.
func start(t *testing.T, a *api, options eviction.Options) (e *Evictor, stop func()) {
	client := a.client()
	e = New(client, Events{Nodes: eventlog.New(client, Name), Devices: eventlog.New(client, DeviceName)}, options)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); e.Run(ctx) }()
	stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Error("still running 10 s after its context ended")
		}
	}
	t.Cleanup(stop)
	return e, stop
}

func within(t *testing.T, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !is(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestEvictsBoundedNumberAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.fill("n1", 300)
		a.fill("n2", 50)
		e, _ := start(t, a, eviction.Options{InFlight: 8})
		within(t, 10*time.Second, "synced", e.Synced)
		a.addNode("n1", taint)
		within(t, 30*time.Second, "the pods of n1 are gone", func() bool { return a.podsOn("n1") == 0 })
		a.locked(func() {
			if a.mostBusy != 8 {
				t.Errorf("%d requests at once, want 8", a.mostBusy)
			}
		})
		if n := a.podsOn("n2"); n != 50 {
			t.Errorf("%d pods left on the other node, want all 50", n)
		}
	})
}

// TestGoesOnAfterAnOutage breaks every connection in the middle of evictions. It verifies that all
// pods are evicted soon after the API server is back, and not only after the half minute of a
// reflector's back-off.
func TestGoesOnAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.fill("n1", 200)
		a.fill("n2", 20)
		e, _ := start(t, a, eviction.Options{InFlight: 4})
		within(t, 10*time.Second, "synced", e.Synced)
		a.addNode("n1", taint)
		within(t, 30*time.Second, "some are gone", func() bool { return a.podsOn("n1") < 200 })
		a.breakDown()
		time.Sleep(time.Minute) // the outage itself
		if a.podsOn("n1") == 0 {
			t.Fatal("all were gone before the outage")
		}
		a.repair()
		a.addNode("n2", taint) // a change after the outage must be observed as well
		within(t, 15*time.Second, "all are gone", func() bool { return len(a.Pods()) == 0 })
	})
}

// TestRefusedDeleteHoldsUpNobodyElse verifies that a pod whose delete a webhook refuses five times
// does not delay the eviction of other pods, and is evicted in the end.
func TestRefusedDeleteHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.fill("n1", 20)
		a.refuse["n1-3"] = 5
		e, _ := start(t, a, eviction.Options{InFlight: 2})
		within(t, 10*time.Second, "synced", e.Synced)
		a.addNode("n1", taint)
		within(t, 10*time.Second, "the others are gone", func() bool { return len(a.Pods()) == 1 })
		within(t, 30*time.Second, "that one is gone", func() bool { return len(a.Pods()) == 0 })
	})
}

// TestWebhookThatIsGoneDelaysEvictions verifies that pods are deleted although an unreachable
// webhook delays each delete by 30 s, the longest webhook timeout that the API server allows. The
// evictions must not wait until the webhook is back, because that may depend on them.
func TestWebhookThatIsGoneDelaysEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.fill("n1", 3)
		a.slow = 30 * time.Second
		e, _ := start(t, a, eviction.Options{})
		within(t, 10*time.Second, "synced", e.Synced)
		a.addNode("n1", taint)
		within(t, 40*time.Second, "the pods are gone", func() bool { return len(a.Pods()) == 0 })
	})
}

// TestEndsWhileRequestsHang verifies that Run returns after the end of its context although deletes
// hang, for example in a webhook.
func TestEndsWhileRequestsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.fill("n1", 5)
		a.hang = true
		e, stop := start(t, a, eviction.Options{})
		within(t, 10*time.Second, "synced", e.Synced)
		a.addNode("n1", taint)
		time.Sleep(time.Second)
		a.locked(func() {
			if a.busy != 5 {
				t.Errorf("%d deletes under way, want 5", a.busy)
			}
		})
		stop()
	})
}
