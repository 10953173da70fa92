package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/cri"
	"github.com/berth-k8s/berth/internal/node/agent/env"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
	"github.com/berth-k8s/berth/internal/node/agent/volumes"
)

// perform carries out actions in order. Those that take as long as the pod wants, stops and hooks,
// run concurrently.
func (w *worker) perform(ctx context.Context, pod *v1.Pod, seen lifecycle.Seen, actions []lifecycle.Action, ending bool) error {
	a := w.agent
	for _, action := range actions {
		var err error
		switch action.Kind {
		case lifecycle.CreateSandbox:
			err = w.createSandbox(ctx, pod, action.Attempt)
		case lifecycle.StopSandbox:
			err = a.runtime.Runtime.StopPodSandbox(ctx, action.ID)
		case lifecycle.RemoveSandbox:
			err = a.runtime.Runtime.RemovePodSandbox(ctx, action.ID)
		case lifecycle.StartContainer:
			err = w.startContainer(ctx, pod, seen, action)
		case lifecycle.PreStop:
			w.preStop(ctx, pod, seen, action)
		case lifecycle.StopContainer:
			w.stopContainer(ctx, pod, seen, action)
		case lifecycle.Resize:
			w.resize(ctx, pod, action)
		case lifecycle.RemoveContainer:
			if err = w.removeContainer(ctx, action.ID); status.Code(err) == codes.FailedPrecondition {
				w.memory.CannotRemove(action.ID) // its start was cut off, and left something that the runtime has lost sight of
			}
		}
		if err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("%s: %w", action, err)
		}
		if !ending && w.toEnd() {
			return nil // the remaining actions were for a pod that was to keep running
		}
	}
	return nil
}

// later postpones the start of the pod, and reports why: something that all its containers need is
// not available.
func (w *worker) later(pod *v1.Pod, reason, message string) {
	w.agent.event(pod, v1.EventTypeWarning, reason, message)
	w.wait()
}

// wait delays everything that is to be started, longer each time.
func (w *worker) wait() {
	w.misses++
	w.memory.NotBefore = time.Now().Add(min(500*time.Millisecond<<min(w.misses, 5), 10*time.Second))
}

// prepare sets up what a pod's containers need before any can run: its cgroup and its volumes.
func (w *worker) prepare(ctx context.Context, pod *v1.Pod) (cgroup string, ok bool) {
	a := w.agent
	cgroup, err := a.cgroups.tree.EnsurePod(pod)
	if err != nil {
		w.later(pod, "FailedCreatePodContainer", fmt.Sprintf("unable to ensure pod container exists: %v", err))
		return "", false
	}
	if err := a.volumes.Mount(ctx, pod); ctx.Err() != nil {
		return "", false // cancelled
	} else if err != nil {
		var setUp *volumes.SetUpErrors
		if !errors.As(err, &setUp) {
			w.later(pod, "FailedMount", err.Error())
			return "", false
		}
		for _, one := range setUp.List {
			a.event(pod, v1.EventTypeWarning, "FailedMount", one.Error())
		}
		if setUp.Blocking() {
			w.wait()
			return "", false
		}
	}
	return cgroup, true
}

func (w *worker) createSandbox(ctx context.Context, pod *v1.Pod, attempt int) error {
	a := w.agent
	ctx, done := w.starting(ctx)
	defer done()
	cgroup, ok := w.prepare(ctx, pod)
	if !ok {
		return nil
	}
	id, err := a.makeSandbox(ctx, pod, attempt, cgroup)
	if err != nil {
		if ctx.Err() == nil {
			a.kubelet.PodFailedToStart()
			w.later(pod, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+status.Convert(err).Message())
		}
		return nil
	}
	w.misses = 0
	a.share()
	if attempt > 0 {
		a.event(pod, v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	klog.V(2).InfoS("Made a sandbox", "pod", klog.KObj(pod), "uid", pod.UID, "sandbox", id)
	return nil
}

func (a *Agent) makeSandbox(ctx context.Context, pod *v1.Pod, attempt int, cgroup string) (string, error) {
	handler, err := a.handler(ctx, pod)
	if err != nil {
		return "", err
	}
	config, warnings, err := a.sandboxConfig(pod, attempt, cgroup)
	if err != nil {
		return "", err
	}
	for _, warning := range warnings {
		a.event(pod, v1.EventTypeWarning, warning.Reason, warning.Message)
	}
	if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
		return "", err
	}
	leave, err := a.starts.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	// A sandbox that was begun is completed even if the agent ends: half of one is harder to take
	// over.
	return a.runtime.Runtime.RunPodSandbox(context.WithoutCancel(ctx), config, handler)
}

func (a *Agent) sandboxConfig(pod *v1.Pod, attempt int, cgroup string) (*runtimeapi.PodSandboxConfig, []env.Warning, error) {
	hostname, err := a.hostname(pod)
	if err != nil {
		return nil, nil, err
	}
	dns, warnings := a.resolver().For(pod)
	overhead, resources := a.cgroups.sandbox(pod)
	config, err := a.runtime.SandboxConfig(pod, attempt, cri.Place{
		CgroupParent: cgroup, LogDir: a.config.PodLogDir, Hostname: hostname,
		DNS:      &runtimeapi.DNSConfig{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options},
		Overhead: overhead, Resources: resources,
	})
	return config, warnings, err
}

func (w *worker) removeContainer(ctx context.Context, id string) error {
	a := w.agent
	path := ""
	if response, err := a.runtime.Runtime.ContainerStatus(ctx, id, false); err == nil {
		path = response.GetStatus().GetLogPath()
	}
	if err := a.runtime.Runtime.RemoveContainer(ctx, id); err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	w.mu.Lock()
	delete(w.stops, id)
	delete(w.hooks, id)
	w.mu.Unlock()
	return a.removeLog(path)
}

// gate bounds how many pods are being started at once: more would only make each of them slower.
type gate chan struct{}

// enter waits for a slot, and returns how to leave it. It fails if the context ends first, also if
// a slot is free by then.
func (g gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave = func() { <-g }
	if err := ctx.Err(); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}
