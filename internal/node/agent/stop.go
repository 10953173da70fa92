package agent

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// leastGrace is the minimum time between SIGTERM and SIGKILL.
const leastGrace = 2 * time.Second

// stopAgain is the pause after the runtime could not stop a container.
const stopAgain = time.Second

// preStop runs a container's hook, once, concurrently with everything else.
func (w *worker) preStop(ctx context.Context, pod *v1.Pod, seen lifecycle.Seen, action lifecycle.Action) {
	w.mu.Lock()
	begun := w.hooks[action.ID] != 0
	if !begun {
		w.hooks[action.ID] = lifecycle.HookRunning
	}
	w.mu.Unlock()
	if begun {
		return
	}
	ip := firstOf(podIPs(pod, seen, w.agent.hostIPs()))
	w.agent.pods.running.Go(func() {
		w.agent.hooksOf.PreStop(ctx, pod, action.Container, action.ID, ip, time.Until(action.By))
		w.mu.Lock()
		w.hooks[action.ID] = lifecycle.HookDone
		w.mu.Unlock()
		w.wake()
	})
}

// stopContainer sends SIGTERM, and SIGKILL when the grace period is over. A stop in progress is
// repeated only to end sooner.
func (w *worker) stopContainer(ctx context.Context, pod *v1.Pod, seen lifecycle.Seen, action lifecycle.Action) {
	w.mu.Lock()
	by, stopping := w.stops[action.ID]
	if stopping && !action.By.Before(by.Add(-time.Second)) {
		w.mu.Unlock()
		return
	}
	w.stops[action.ID] = action.By
	hook := action.Hook && w.hooks[action.ID] == 0 && hasPreStop(action.Container)
	if hook {
		w.hooks[action.ID] = lifecycle.HookRunning
	}
	w.mu.Unlock()
	if !stopping {
		message := action.Message
		if message == "" {
			message = "Stopping container " + action.Name
		}
		w.agent.containerEvent(pod, action.Name, v1.EventTypeNormal, "Killing", message)
	}
	ip := firstOf(podIPs(pod, seen, w.agent.hostIPs()))
	w.agent.pods.running.Go(func() {
		if hook {
			w.agent.hooksOf.PreStop(ctx, pod, action.Container, action.ID, ip, time.Until(action.By))
			w.mu.Lock()
			w.hooks[action.ID] = lifecycle.HookDone
			w.mu.Unlock()
		}
		w.stopNow(ctx, action)
		w.wake()
	})
}

func hasPreStop(c *v1.Container) bool {
	return c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil
}

func (w *worker) stopNow(ctx context.Context, action lifecycle.Action) {
	// The runtime counts in whole seconds.
	grace := max(time.Until(action.By), leastGrace)
	seconds := int64((grace + time.Second/2) / time.Second)
	err := w.agent.runtime.Runtime.StopContainer(ctx, action.ID, seconds)
	if err == nil || status.Code(err) == codes.NotFound {
		return
	}
	if ctx.Err() == nil {
		klog.ErrorS(err, "Cannot stop a container; it is tried again", "pod", klog.KObj(w.object()), "container", action.Name, "id", action.ID)
	}
	select {
	case <-ctx.Done():
	case <-time.After(stopAgain):
	}
	w.mu.Lock()
	delete(w.stops, action.ID)
	w.mu.Unlock()
}
