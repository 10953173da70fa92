package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/agent/shutdown"
)

// Pods end by priority, and say why; the node is not ready, and takes no pod any more.
func TestShutdownEndsPodsByPriority(t *testing.T) {
	low, high, late := boundPod("low"), boundPod("high"), boundPod("late")
	priority := int32(1000)
	high.Spec.Priority = &priority
	n, ctx := newNode(t, low, high, late)
	n.config.Shutdown = shutdown.Periods{{Priority: 0, Grace: 30 * time.Second}, {Priority: 1000, Grace: 30 * time.Second}}
	for _, pod := range []*v1.Pod{low, high} {
		n.podSeen(ctx, pod)
		await(t, pod.Name+" runs", func() bool { return statusIn(t, n.api, pod.Name).Phase == v1.PodRunning })
	}
	done := make(chan struct{})
	go func() { n.Terminate(ctx); close(done) }()
	for _, pod := range []*v1.Pod{low, high} {
		await(t, pod.Name+" has ended", func() bool { return statusIn(t, n.api, pod.Name).Phase == v1.PodFailed })
		if pod == low && n.pods.get(high.UID).toEnd() {
			t.Error("the more important pod ends before what the other had is free")
		}
		n.dropGroup(t, pod.UID)
	}
	<-done
	for _, name := range []string{"low", "high"} {
		status := statusIn(t, n.api, name)
		disrupted := slices.ContainsFunc(status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == "TerminationByKubelet"
		})
		if status.Phase != v1.PodFailed || status.Reason != "Terminated" || !strings.Contains(status.Message, "imminent node shutdown") || !disrupted {
			t.Errorf("%s: %s, %s, %q, disrupted %t", name, status.Phase, status.Reason, status.Message, disrupted)
		}
	}
	if ready := n.readyCondition(time.Now()); ready.Status != v1.ConditionFalse || ready.Message != "node is shutting down" {
		t.Errorf("ready: %+v", ready)
	}
	n.podSeen(ctx, late)
	await(t, "a new pod is refused", func() bool { return statusIn(t, n.api, "late").Reason == "NodeShutdown" })
}

// SIGTERM leaves pods running where nobody set grace periods, and where systemd tells of shutdowns.
func TestTerminateLeavesPods(t *testing.T) {
	pod := boundPod("p")
	n, ctx := newNode(t, pod)
	n.podSeen(ctx, pod)
	await(t, "it runs", func() bool { return statusIn(t, n.api, "p").Phase == v1.PodRunning })
	n.Terminate(ctx)
	n.config.Shutdown = shutdown.Periods{{Grace: 30 * time.Second}}
	n.goingDown.inhibited.Store(true)
	n.Terminate(ctx)
	if n.goingDown.now.Load() || n.pods.get(pod.UID).toEnd() {
		t.Error("the pod was ended")
	}
}

// A pod that has done its work by then has succeeded: its Job does not make another.
func TestShutdownLeavesSuccess(t *testing.T) {
	pod := boundPod("p")
	n, ctx := newNode(t, pod)
	n.runtime.stopped = 0
	n.config.Shutdown = shutdown.Periods{{Grace: time.Second}}
	n.podSeen(ctx, pod)
	await(t, "it runs", func() bool { return statusIn(t, n.api, "p").Phase == v1.PodRunning })
	n.dropGroup(t, pod.UID)
	n.Terminate(ctx)
	if status := statusIn(t, n.api, "p"); status.Phase != v1.PodSucceeded || status.Reason != "Terminated" {
		t.Errorf("%s, %s", status.Phase, status.Reason)
	}
}
