package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/cri"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// glanceEvery is how often the runtime is polled for changes, as by the kubelet.
const glanceEvery = time.Second

// glanceAround wakes the workers of pods that have changed in the runtime, and ends pods that only
// the runtime still has.
func (a *Agent) glanceAround(ctx context.Context) {
	last := map[types.UID]string{}
	ticker := time.NewTicker(glanceEvery)
	defer ticker.Stop()
	var listed time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := time.Now()
		now, err := a.runtime.Glances(ctx)
		if err != nil {
			klog.V(2).InfoS("Cannot list what is in the container runtime", "err", err)
			continue
		}
		a.health.list(time.Now())
		a.kubelet.Relisted(time.Since(began), sinceLast(listed, began))
		listed = began
		known := a.listed.Load()
		for uid, g := range now {
			w := a.pods.get(uid)
			if w == nil && known && g.Mine {
				w = a.orphan(ctx, g.Owner)
			}
			if w != nil && last[uid] != g.State {
				w.wake()
			}
		}
		for uid := range last {
			if _, there := now[uid]; !there {
				if w := a.pods.get(uid); w != nil {
					w.wake()
				}
			}
		}
		clear(last)
		for uid, g := range now {
			last[uid] = g.State
		}
	}
}

// sinceLast returns the time since the last run; 0 if there was none.
func sinceLast(last, now time.Time) time.Duration {
	if last.IsZero() {
		return 0
	}
	return now.Sub(last)
}

// orphan makes a worker for a pod in the runtime that no longer exists: it was deleted while no
// agent was running. It ends like any deleted pod.
func (a *Agent) orphan(ctx context.Context, owner cri.Owner) *worker {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: owner.UID, Namespace: owner.Namespace, Name: owner.Name}}
	klog.InfoS("Ending a pod that is in the container runtime only", "pod", klog.KObj(pod), "uid", pod.UID)
	w := a.newWorker(pod, false)
	w.admitted, w.gone = true, true
	a.pods.start(ctx, w)
	return w
}

// release frees what a pod had on the node, apart from the runtime. What cannot be removed does not
// keep devices and CPUs from other pods: nothing of the pod runs.
func (a *Agent) release(ctx context.Context, uid types.UID) error {
	a.prober.Stop(uid)
	a.devices.Free(uid)
	if a.pinning.release(uid) {
		a.roomMade()
	}
	if err := a.volumes.Unmount(ctx, uid); err != nil {
		return err
	}
	if err := a.cgroups.tree.RemovePod(uid); err != nil {
		return err
	}
	a.share()
	a.objects.Release(uid)
	return nil
}

// sweep frees folders, cgroups and devices of pods that are neither in the API nor in the runtime.
func (a *Agent) sweep(ctx context.Context) {
	inRuntime, err := a.runtime.Glances(ctx)
	if err != nil {
		return
	}
	left := map[types.UID]bool{}
	if onDisk, err := a.volumes.OnDisk(); err == nil {
		for _, uid := range onDisk {
			left[uid] = true
		}
	}
	if inGroups, err := a.cgroups.tree.Pods(); err == nil {
		for _, uid := range inGroups {
			left[uid] = true
		}
	}
	for _, uid := range slices.Concat(a.pinning.holders(), a.devices.Holders()) {
		left[uid] = true
	}
	var releasing sync.WaitGroup // each on its own: a CSI driver may take long, or for ever
	for uid := range left {
		if _, there := inRuntime[uid]; there || a.pods.get(uid) != nil {
			continue
		}
		releasing.Go(func() {
			if err := a.release(ctx, uid); err != nil {
				klog.V(2).InfoS("Cannot free what a pod left", "uid", uid, "err", err)
			}
		})
	}
	releasing.Wait()
	a.publisher.Sweep(ctx)
}

// sweepEvery is how often leftovers are removed, beginning when all pods are known.
const sweepEvery = 2 * time.Minute

func (a *Agent) sweepAround(ctx context.Context) {
	for a.wait(ctx, a.listed.Load) {
		a.sweep(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(sweepEvery):
		}
	}
}

// wait waits for a condition; false if the agent ends first.
func (a *Agent) wait(ctx context.Context, so func() bool) bool {
	for !so() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
	return true
}

// Evict ends a pod on the node's behalf; false if there is no such pod, or it is already ending.
// One that the node ends already keeps its reason, but has no more time than the new one gives it.
func (a *Agent) Evict(uid types.UID, why lifecycle.Ending) bool {
	w := a.pods.get(uid)
	if w == nil {
		return false
	}
	w.mu.Lock()
	first := w.evicted == nil && !w.over
	switch {
	case first:
		w.evicted = &why
	case w.evicted != nil && why.By.Before(w.evicted.By):
		sooner := *w.evicted
		sooner.By = why.By
		w.evicted = &sooner
	}
	w.mu.Unlock()
	w.breakOff()
	return first
}
