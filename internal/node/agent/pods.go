package agent

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pods are all pods of this node, by UID: a pod that takes another's name is a different pod.
type pods struct {
	mu      sync.Mutex
	workers map[types.UID]*worker
	running sync.WaitGroup
}

func newPods() *pods {
	return &pods{workers: map[types.UID]*worker{}}
}

func (p *pods) get(uid types.UID) *worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers[uid]
}

func (p *pods) all() []*worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*worker, 0, len(p.workers))
	for _, w := range p.workers {
		out = append(out, w)
	}
	return out
}

// start starts a worker, unless the pod has one.
func (p *pods) start(ctx context.Context, w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers[w.uid] != nil {
		return
	}
	p.workers[w.uid] = w
	p.running.Go(func() { w.run(ctx) })
}

func (p *pods) drop(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers[w.uid] == w {
		delete(p.workers, w.uid)
	}
}

// podSeen records the newest object of an API pod.
func (a *Agent) podSeen(ctx context.Context, pod *v1.Pod) {
	if isMirror(pod) {
		a.mirrorSeen(pod)
		return
	}
	w := a.pods.get(pod.UID)
	if w == nil {
		own := fromAPI(pod, firstSeen(time.Now()))
		w = a.newWorker(own, false)
		w.inAPI, w.takenUp = pod, !a.listed.Load()
		if w.admitted = pod.Status.StartTime != nil && !terminal(pod); w.admitted { // by the agent that ran here before
			w.allocation = allocatedBefore(pod)
			own = w.allocation.applied(own)
			w.pod = own
		}
		a.objects.Use(own)
		a.volumes.Update(own)
		a.pods.start(ctx, w)
		return
	}
	own := w.told(pod)
	a.objects.Use(own)
	a.volumes.Update(own)
	a.retryResizes()
	if pod.DeletionTimestamp != nil {
		w.breakOff()
	}
	w.wake()
}

// podGone records that the API no longer has a pod: it was deleted without waiting for the agent.
func (a *Agent) podGone(pod *v1.Pod) {
	if isMirror(pod) {
		a.mirrors.gone(pod)
		return
	}
	if w := a.pods.get(pod.UID); w != nil {
		w.told(pod) // it may have been deleted with less grace than the agent knows of
		w.end()
	}
}

// told records the API's newest object of the worker's pod, and returns it as the node has it.
func (w *worker) told(pod *v1.Pod) *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pod, w.inAPI = w.allocation.applied(fromAPI(pod, w.pod.Annotations[annotationConfigSeen])), pod
	return w.pod
}

// end ends the pod: it no longer exists.
func (w *worker) end() {
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
	w.agent.statuses.drop(w)
	w.breakOff()
}

// Pods returns the pods of this node, with their statuses as the agent knows them. Those that no
// longer exist come last: another one may have the name.
func (a *Agent) Pods() []*v1.Pod {
	there, gone := []*v1.Pod{}, []*v1.Pod{}
	for _, w := range a.pods.all() {
		w.mu.Lock()
		isGone := w.gone
		w.mu.Unlock()
		if isGone {
			gone = append(gone, w.known())
		} else {
			there = append(there, w.known())
		}
	}
	return append(there, gone...)
}

// ActivePods returns the admitted pods that have not ended.
func (a *Agent) ActivePods() []*v1.Pod {
	var out []*v1.Pod
	for _, w := range a.pods.all() {
		w.mu.Lock()
		active := w.admitted && !w.over
		w.mu.Unlock()
		if pod := w.known(); active && !terminal(pod) {
			out = append(out, pod)
		}
	}
	return out
}

func terminal(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}
