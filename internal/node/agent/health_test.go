package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVerdictOnTheRuntime(t *testing.T) {
	began := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	answered := func(d time.Duration) *health { return &health{began: began, answered: at(d), listed: at(d)} }
	complains := answered(time.Minute)
	complains.state.Complaint = "container runtime network not ready"
	unlisted := answered(10 * time.Minute)
	unlisted.listed = at(time.Minute)
	for _, c := range []struct {
		what   string
		health *health
		now    time.Duration
		want   string
	}{
		{"never asked", &health{}, time.Hour, "container runtime status check may not have completed yet"},
		{"asked just now", &health{began: began}, 29 * time.Second, "container runtime status check may not have completed yet"},
		{"never answered", &health{began: began}, 30 * time.Second, "container runtime is down: it has not answered since 2026-11-20T12:00:00Z"},
		{"answered", answered(time.Minute), 89 * time.Second, ""},
		{"silent", answered(time.Minute), 90 * time.Second, "container runtime is down: it has not answered since 2026-11-20T12:01:00Z"},
		{"with a complaint", complains, 61 * time.Second, "container runtime network not ready"},
		{"silent after a complaint", complains, 2 * time.Minute, "container runtime is down: it has not answered since 2026-11-20T12:01:00Z"},
		{"tells nothing of its pods", unlisted, 10*time.Minute + time.Second, "PLEG is not healthy: pleg was last seen active at 2026-11-20T12:01:00Z; threshold is 3m0s"},
	} {
		err, got := c.health.wrong(at(c.now)), ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

func (n *node) ready(t *testing.T) v1.NodeCondition {
	t.Helper()
	node, err := n.api.CoreV1().Nodes().Get(context.Background(), "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
	return node.Status.Conditions[i]
}

// A runtime that hangs, with its socket open: the node is not ready half a minute later, /healthz
// says why, and both are well again soon after the runtime is.
func TestHungRuntimeIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ctx := newNode(t)
		n.Agent.config.StatusReport = time.Hour
		for _, part := range []func(context.Context){n.askRuntime, n.Agent.images.run, n.glanceAround} {
			n.pods.running.Go(func() { part(ctx) })
		}
		n.pods.running.Go(func() {
			if n.register(ctx) {
				n.keepNode(ctx)
			}
		})
		time.Sleep(10 * time.Second)
		if c := n.ready(t); c.Status != v1.ConditionTrue {
			t.Fatalf("at the beginning: %+v", c)
		}
		goOn := n.runtime.stall()
		hung := time.Now()
		time.Sleep(24 * time.Second)
		if c := n.ready(t); c.Status != v1.ConditionTrue {
			t.Errorf("after 24 s of silence: %+v", c)
		}
		time.Sleep(8 * time.Second)
		if c := n.ready(t); c.Status != v1.ConditionFalse || c.Reason != "KubeletNotReady" || !strings.Contains(c.Message, "container runtime is down: it has not answered since ") {
			t.Errorf("after %s of silence: %+v", time.Since(hung), c)
		}
		if err := n.health.checks()["runtime"](); err == nil {
			t.Error("/healthz says that all is well")
		}
		time.Sleep(5 * time.Minute) // as long as it takes for every question to be given up
		if err := n.health.checks()["pleg"](); err == nil || !strings.HasPrefix(err.Error(), "PLEG is not healthy") {
			t.Errorf("/healthz of the list of pods: %v", err)
		}
		goOn()
		time.Sleep(7 * time.Second)
		if c := n.ready(t); c.Status != v1.ConditionTrue {
			t.Errorf("7 s after the runtime went on: %+v", c)
		}
		for name, check := range n.health.checks() {
			if err := check(); err != nil {
				t.Errorf("/healthz/%s afterwards: %v", name, err)
			}
		}
		events := allEvents(n)
		if strings.Count(events, "Normal NodeNotReady ") != 1 || !strings.HasSuffix(events, "status is now: NodeReady\n") {
			t.Errorf("events:\n%s", events)
		}
	})
}

// Whatever else hangs, the node's status does not wait for the runtime.
func TestNodeIsReportedWhileTheRuntimeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, ctx := newNode(t)
		defer n.runtime.stall()()
		began := time.Now()
		if !n.register(ctx) {
			t.Fatal("not registered")
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("registered after %s", took)
		}
		if c := n.ready(t); c.Status != v1.ConditionFalse || !strings.Contains(fmt.Sprint(c.Message), "may not have completed yet") {
			t.Errorf("ready: %+v", c)
		}
	})
}
