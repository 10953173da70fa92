package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
	"github.com/berth-k8s/berth/internal/node/agent/shutdown"
)

// goingDown is the state of the machine's shutdown.
type goingDown struct {
	// now: the machine is shutting down. No pod is admitted, and the node is not ready.
	now atomic.Bool
	// inhibited: systemd announces a shutdown, so SIGTERM means that only the agent ends.
	inhibited atomic.Bool
}

var errShuttingDown = errors.New("node is shutting down")

// Messages are the kubelet's.
const (
	refusedAtEnd    = "Pod was rejected as the node is shutting down."
	endedByShutdown = "Pod was terminated in response to imminent node shutdown."
)

// inhibitAgain is the pause before the bus is tried again after it was lost.
const inhibitAgain = time.Second

// awaitShutdown terminates pods when systemd is about to shut the machine down, and delays the
// shutdown meanwhile.
func (a *Agent) awaitShutdown(ctx context.Context) {
	if len(a.config.Shutdown) == 0 {
		return
	}
	told := ""
	for ctx.Err() == nil {
		err := a.watchLogind(ctx)
		a.goingDown.inhibited.Store(false)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, shutdown.ErrNone):
			klog.InfoS("This machine has no systemd-logind that tells of its shutdown: SIGTERM is taken for it", "err", err)
			return
		case told != err.Error():
			told = err.Error()
			klog.ErrorS(err, "Cannot delay a shutdown of this machine; it is tried again every second")
		}
		select {
		case <-ctx.Done():
		case <-time.After(inhibitAgain):
		}
	}
}

func (a *Agent) watchLogind(ctx context.Context) error {
	logind, err := shutdown.Inhibit(ctx, shutdown.Options{
		Who: "berth agent", Why: "pods are to end before the machine does", Delay: a.config.Shutdown.Whole(),
	})
	if err != nil {
		return err
	}
	defer logind.Close()
	a.goingDown.inhibited.Store(true)
	klog.InfoS("A shutdown of this machine is delayed until pods have ended", "delay", a.config.Shutdown.Whole())
	for {
		begins, err := logind.Next(ctx)
		if err != nil {
			return err
		}
		if begins {
			a.nodeNote("Shutdown manager detected shutdown event")
			a.shutDown(ctx)
			logind.Release()
			continue
		}
		a.nodeNote("Shutdown manager detected shutdown cancellation")
		a.goingDown.now.Store(false)
		a.reportNode()
		if err := logind.Hold(ctx); err != nil {
			return err
		}
	}
}

func (a *Agent) nodeNote(message string) {
	a.eventAboutNode(v1.EventTypeNormal, "Shutdown", message)
}

// Terminate handles SIGTERM. Where nothing else announces a shutdown of the machine, and there are
// grace periods for one, SIGTERM stands for it, and pods are terminated. Otherwise they keep
// running, for the next agent.
func (a *Agent) Terminate(ctx context.Context) {
	if len(a.config.Shutdown) > 0 && !a.goingDown.inhibited.Load() {
		a.shutDown(ctx)
	}
}

// shutDown terminates all pods, group by group. It returns when they have ended, or their time is
// up.
func (a *Agent) shutDown(ctx context.Context) {
	if a.goingDown.now.Swap(true) {
		return
	}
	a.reportNode()
	groups := a.config.Shutdown.Groups(a.ActivePods())
	klog.InfoS("The machine shuts down: pods end", "groups", len(groups), "within", a.config.Shutdown.Whole())
	for _, group := range groups {
		for _, pod := range group.Pods {
			a.Evict(pod.UID, endAtShutdown(time.Now().Add(group.Grace(pod))))
		}
		within, cancel := context.WithTimeout(ctx, group.Period.Grace)
		for _, pod := range group.Pods {
			if !a.wait(within, func() bool { return a.evictedGone(pod.UID) }) {
				klog.InfoS("A pod did not end in the time that its priority has", "pod", klog.KObj(pod), "time", group.Period.Grace)
			}
		}
		cancel()
	}
	within, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	a.wait(within, a.statuses.idle)
}

// statusPatience is how long to wait for the API server to accept the pods' final statuses.
const statusPatience = 2 * time.Second

func endAtShutdown(by time.Time) lifecycle.Ending {
	return lifecycle.Ending{
		Phase: v1.PodFailed, Reason: "Terminated", Message: endedByShutdown, By: by, KeepsSuccess: true,
		Condition: &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: endedByShutdown,
		},
	}
}
