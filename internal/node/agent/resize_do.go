package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/node/agent/cgroups"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// resize resizes containers in place, memory first, then CPU. A failure is reported in the pod's
// condition and retried.
func (w *worker) resize(ctx context.Context, pod *v1.Pod, action lifecycle.Action) {
	err := w.agent.tellSandbox(ctx, pod, action.ID)
	for _, name := range lifecycle.Resizable {
		if err == nil {
			err = w.resizeOne(ctx, pod, name, action.Resizes)
		}
	}
	if err != nil {
		w.memory.ResizeFailed(err.Error(), time.Now())
		return
	}
	w.agent.share()
}

// resizeOne resizes one resource of all containers and of the pod's own cgroup, whose limit is at
// no time below that of a container.
func (w *worker) resizeOne(ctx context.Context, pod *v1.Pod, name v1.ResourceName, list []lifecycle.ContainerResize) error {
	tree := w.agent.cgroups.tree
	have, err := tree.PodSizes(pod.UID)
	if err != nil {
		return err
	}
	want := tree.SizesOf(pod)
	if name == v1.ResourceMemory {
		want = cgroups.Sizes{Memory: want.Memory}
		if err := w.agent.mayShrink(pod, have, want, list); err != nil {
			return fmt.Errorf("cannot decrease memory limits: %w", err)
		}
	} else {
		want.Memory = 0
	}
	grows := have.Memory != 0 && want.Memory > have.Memory || have.Quota != 0 && want.Quota > have.Quota
	if grows {
		if err := tree.SetPod(pod.UID, want); err != nil {
			return err
		}
	}
	// Shrinking containers make room for growing ones.
	for _, growing := range []bool{false, true} {
		for _, r := range list {
			if moreOf(r, name) == growing {
				if err := w.updateContainer(ctx, pod, r, name); err != nil {
					return fmt.Errorf("container %q: %w", r.Container.Name, err)
				}
			}
		}
	}
	if grows {
		return nil
	}
	return tree.SetPod(pod.UID, want)
}

// moreOf reports whether a container gets more of a resource: by its limit or, if that stays, by
// its request.
func moreOf(r lifecycle.ContainerResize, name v1.ResourceName) bool {
	limit, request := r.Container.Resources.Limits[name], r.Container.Resources.Requests[name]
	if by := limit.Cmp(r.From.Limits[name]); by != 0 {
		return by > 0
	}
	return request.Cmp(r.From.Requests[name]) > 0
}

// updateContainer changes one resource; the container keeps what it has of the other.
func (w *worker) updateContainer(ctx context.Context, pod *v1.Pod, r lifecycle.ContainerResize, name v1.ResourceName) error {
	now := *r.From.DeepCopy()
	if earlier, known := w.actuated[r.ID]; known {
		now = *earlier.DeepCopy()
	}
	before := *now.DeepCopy()
	now.Requests = withAmount(now.Requests, r.Container.Resources.Requests, name)
	now.Limits = withAmount(now.Limits, r.Container.Resources.Limits, name)
	if !lifecycle.SameSize(before, now) {
		container := *r.Container
		container.Resources = now
		resources := w.agent.cgroups.container(pod, &container)
		if err := w.agent.runtime.Runtime.UpdateContainerResources(ctx, r.ID, &runtimeapi.ContainerResources{Linux: resources}); err != nil {
			return errors.New(status.Convert(err).Message())
		}
	}
	w.actuated[r.ID] = now
	return nil
}

func withAmount(list, from v1.ResourceList, name v1.ResourceName) v1.ResourceList {
	if amount, has := from[name]; has {
		if list == nil {
			list = v1.ResourceList{}
		}
		list[name] = amount
	}
	return list
}

// mayShrink rejects memory limits below the current usage: the kernel would kill processes for
// them.
func (a *Agent) mayShrink(pod *v1.Pod, have, want cgroups.Sizes, list []lifecycle.ContainerResize) error {
	var failed []error
	if want.Memory != 0 && (have.Memory == 0 || want.Memory < have.Memory) {
		if usage, err := a.cgroups.tree.PodUsage(pod.UID); err != nil {
			failed = append(failed, errors.New("missing pod memory usage"))
		} else if usage.Memory >= want.Memory {
			failed = append(failed, fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", want.Memory, usage.Memory))
		}
	}
	for _, r := range list {
		limit, before := r.Container.Resources.Limits.Memory().Value(), r.From.Limits.Memory().Value()
		if limit == 0 || before != 0 && limit >= before {
			continue
		}
		if usage, err := a.cgroups.tree.ContainerUsage(pod.UID, r.ID); err != nil {
			failed = append(failed, fmt.Errorf("missing container %q memory usage", r.Container.Name))
		} else if usage.Memory >= limit {
			failed = append(failed, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)",
				r.Container.Name, limit, usage.Memory))
		}
	}
	return errors.Join(failed...)
}

// tellSandbox reports the pod's total resources to the runtime, for runtimes that size a virtual
// machine by it. Most do not need it.
func (a *Agent) tellSandbox(ctx context.Context, pod *v1.Pod, sandbox string) error {
	overhead, whole := a.cgroups.sandbox(pod)
	_, err := a.runtime.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: sandbox, Overhead: overhead, Resources: whole,
	})
	// A runtime without sandbox resizing need not do it. Some wrap the error and lose its code, so
	// that only the message tells.
	if code := status.Code(err); code == codes.Unimplemented || code == codes.Unknown && strings.Contains(status.Convert(err).Message(), "not implemented") {
		return nil
	}
	return err
}

// setSizes records for each container what it runs with: as it was created, or as it was resized
// since, by this agent or, according to the pod's status, by a previous one.
func (w *worker) setSizes(pod *v1.Pod, seen *lifecycle.Seen) {
	first := w.actuated == nil
	if first {
		w.actuated = map[string]v1.ResourceRequirements{}
	}
	there := map[string]bool{}
	for i := range seen.Containers {
		c := &seen.Containers[i]
		there[c.ID] = true
		for _, cs := range allContainers(pod.Status) {
			if first && cs.ContainerID == lifecycle.ContainerID(c.ID) && cs.Resources != nil {
				w.actuated[c.ID] = *cs.Resources
			}
		}
		if now, known := w.actuated[c.ID]; known {
			c.Resources = &now
		}
	}
	for id := range w.actuated {
		if !there[id] {
			delete(w.actuated, id)
		}
	}
}
