package agent

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/cri"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// glanceEvery is how often the runtime is asked what has changed, as the kubelet does it.
const glanceEvery = time.Second

// glanceAround wakes the workers of pods of which something has changed in the runtime, and ends
// what belongs to no pod any more.
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

// sinceLast time; 0: there was none.
func sinceLast(last, now time.Time) time.Duration {
	if last.IsZero() {
		return 0
	}
	return now.Sub(last)
}

// orphan is a pod of this agent's in the runtime that nobody wants any more: it went while the
// agent was not there to see it. It ends as any deleted pod does.
func (a *Agent) orphan(ctx context.Context, owner cri.Owner) *worker {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: owner.UID, Namespace: owner.Namespace, Name: owner.Name}}
	klog.InfoS("Ending a pod that is in the container runtime only", "pod", klog.KObj(pod), "uid", pod.UID)
	w := a.newWorker(pod, false)
	w.admitted, w.gone = true, true
	a.pods.start(ctx, w)
	return w
}

// release gives back what a pod had of the node besides what is in the runtime.
func (a *Agent) release(_ context.Context, uid types.UID) error {
	a.prober.Stop(uid)
	if err := a.volumes.Unmount(uid); err != nil {
		return err
	}
	if err := a.cgroups.tree.RemovePod(uid); err != nil {
		return err
	}
	a.share()
	a.objects.Release(uid)
	return nil
}

// sweep frees what pods left that are neither in the API nor in the runtime: folders and cgroups.
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
	for uid := range left {
		if _, there := inRuntime[uid]; there || a.pods.get(uid) != nil {
			continue
		}
		if err := a.release(ctx, uid); err != nil {
			klog.V(2).InfoS("Cannot free what a pod left", "uid", uid, "err", err)
		}
	}
}

// sweepEvery so often, after the first time when all pods are known.
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

// wait until something is so; false if the agent ends before.
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

// Evict ends a pod for the node's sake; false if there is no such pod, or it is ending already.
func (a *Agent) Evict(uid types.UID, why lifecycle.Ending) bool {
	w := a.pods.get(uid)
	if w == nil {
		return false
	}
	w.mu.Lock()
	done := w.evicted != nil || w.over
	if !done {
		w.evicted = &why
	}
	w.mu.Unlock()
	w.breakOff()
	return !done
}
