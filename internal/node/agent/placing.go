package agent

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// awaitsCPUs reports whether CPUs will be free without anybody's doing: those of pods that no
// longer exist, and those of which it is not known yet.
func (a *Agent) awaitsCPUs() bool {
	if !a.listed.Load() {
		return true
	}
	for _, uid := range a.pinning.holders() {
		w := a.pods.get(uid)
		if w == nil {
			return true
		}
		w.mu.Lock()
		gone := w.gone
		w.mu.Unlock()
		if gone {
			return true
		}
	}
	return false
}

// placeAgain is how often a failed change of a container's CPUs is tried again, as by the kubelet.
const placeAgain = 10 * time.Second

// placeAround moves containers to other CPUs whenever the pool has changed.
func (a *Agent) placeAround(ctx context.Context) {
	if a.pinning.policy == nil {
		return
	}
	ticker := time.NewTicker(placeAgain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.pinning.changed:
		case <-ticker.C:
		}
		a.place(ctx)
	}
}

// place puts all containers that run on the CPUs that they are to run on. One that is being created
// may have been made for the pool of before; it is moved at the next check. Unlike the kubelet, it
// moves ephemeral containers, too: CPUs that a container has of its own it shares with none.
func (a *Agent) place(ctx context.Context) {
	for _, w := range a.pods.all() {
		w.mu.Lock()
		skip := !w.admitted || w.over
		w.mu.Unlock()
		if skip {
			continue
		}
		for _, cs := range allContainers(w.known().Status) {
			if cs.State.Running != nil {
				a.placeContainer(ctx, w, cs.Name, strings.TrimPrefix(cs.ContainerID, lifecycle.ContainerID("")))
			}
		}
	}
}

func (a *Agent) placeContainer(ctx context.Context, w *worker, name, id string) {
	on := a.pinning.cpusOf(w.uid, name)
	if a.pinning.isPlaced(w.uid, name, id, on) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := a.runtime.Runtime.UpdateContainerResources(ctx, id, &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: on}})
	switch {
	case err == nil:
		a.pinning.put(w.uid, name, id, on)
		klog.V(2).InfoS("Moved a container to other CPUs", "pod", klog.KObj(w.object()), "container", name, "cpus", on)
	case status.Code(err) != codes.NotFound && ctx.Err() == nil:
		klog.ErrorS(err, "Cannot move a container to other CPUs; it is tried again", "pod", klog.KObj(w.object()), "container", name, "cpus", on)
	}
}
