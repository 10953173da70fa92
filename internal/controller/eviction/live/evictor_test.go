package live

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

var taint = v1.Taint{Key: "a", Value: "x", Effect: v1.TaintEffectNoExecute}

// start runs an evictor against the API until the returned function ends it.
func start(t *testing.T, a *api, options eviction.Options) (e *Evictor, stop func()) {
	client := a.client()
	e = New(client, eventlog.New(client, Name), options)
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

func fill(a *api, node string, pods int) {
	a.addNode(node)
	for i := range pods {
		a.addPod(fmt.Sprintf("%s-%d", node, i), node)
	}
}

func TestEvictsBoundedNumberAtOnce(t *testing.T) {
	a := newAPI(t)
	fill(a, "n1", 300)
	fill(a, "n2", 50)
	e, _ := start(t, a, eviction.Options{InFlight: 8})
	within(t, 10*time.Second, "synced", e.Synced)
	a.addNode("n1", taint)
	within(t, 30*time.Second, "the pods of n1 are gone", func() bool { return a.podsLeft() <= 50 })
	a.locked(func() {
		if a.mostBusy > 8 {
			t.Errorf("%d requests at once, want at most 8", a.mostBusy)
		}
		for i := range 50 {
			if a.pods[fmt.Sprintf("n2-%d", i)] == nil {
				t.Error("a pod of another node went")
			}
		}
	})
}

// TestGoesOnAfterAnOutage breaks every connection in the middle of things. When
// the API is back, all go, and it does not take a reflector's half minute.
func TestGoesOnAfterAnOutage(t *testing.T) {
	a := newAPI(t)
	fill(a, "n1", 200)
	fill(a, "n2", 20)
	e, _ := start(t, a, eviction.Options{InFlight: 4})
	within(t, 10*time.Second, "synced", e.Synced)
	a.addNode("n1", taint)
	within(t, 30*time.Second, "some are gone", func() bool { return a.podsLeft() < 200 })
	a.breakDown()
	<-time.After(2 * time.Second) // the outage itself
	a.repair()
	a.addNode("n2", taint) // what happens meanwhile is seen as well
	within(t, 15*time.Second, "all are gone", func() bool { return a.podsLeft() == 0 })
}

// TestRefusedDeleteHoldsUpNobodyElse has a webhook refuse one pod five times.
func TestRefusedDeleteHoldsUpNobodyElse(t *testing.T) {
	a := newAPI(t)
	fill(a, "n1", 20)
	a.refuse["n1-3"] = 5
	e, _ := start(t, a, eviction.Options{InFlight: 2})
	within(t, 10*time.Second, "synced", e.Synced)
	a.addNode("n1", taint)
	within(t, 10*time.Second, "the others are gone", func() bool { return a.podsLeft() == 1 })
	within(t, 30*time.Second, "that one is gone", func() bool { return a.podsLeft() == 0 })
}

// TestEndsWhileRequestsHang: SIGTERM must not wait for a webhook.
func TestEndsWhileRequestsHang(t *testing.T) {
	a := newAPI(t)
	fill(a, "n1", 5)
	a.hang = make(chan struct{})
	defer close(a.hang)
	e, stop := start(t, a, eviction.Options{})
	within(t, 10*time.Second, "synced", e.Synced)
	a.addNode("n1", taint)
	within(t, 10*time.Second, "deletes under way", func() bool {
		busy := 0
		a.locked(func() { busy = a.busy })
		return busy == 5
	})
	stop()
}
