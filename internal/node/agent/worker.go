package agent

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// worker is the only goroutine that acts for a pod. Others change what it has to do and wake it.
type worker struct {
	agent *Agent
	uid   types.UID
	woken chan struct{}
	// made is when the agent first saw the pod.
	made time.Time
	// nodeRead: the node's object was read for the pod's admission.
	nodeReading sync.Once
	nodeRead    atomic.Bool

	mu sync.Mutex
	// pod is the newest object, from the API or from a file, with the node's own annotations, and
	// with the allocated resources rather than the requested ones.
	pod *v1.Pod
	// inAPI is the newest object of the API, unmodified: statuses are written on top of it. Nil for
	// a static pod.
	inAPI  *v1.Pod
	static bool
	// gone: the API, or the folder, no longer has it.
	gone bool
	// takenUp: it existed before this agent.
	takenUp bool
	// evicted is why the node ends the pod: the first reason, and the earliest time.
	evicted *lifecycle.Ending
	// admitted: it counts against the node's room.
	admitted bool
	// allocation is what its containers were granted; nil before it is admitted.
	allocation allocation
	// pending is why a resize was not granted, if one was not, and since when it waits.
	pending      *lifecycle.PendingResize
	pendingSince time.Time
	// resizeGeneration is the pod's generation of the resize that was granted last; 0: none since
	// the agent started.
	resizeGeneration int64
	// over: nothing of it runs, or will run.
	over bool
	// released: it no longer uses anything of the node, except what is kept in the runtime for
	// inspection.
	released bool
	// reported is the status as the agent has it; nil before the first sync.
	reported *v1.PodStatus
	// stops and hooks are in progress, by container ID.
	stops map[string]time.Time
	hooks map[string]lifecycle.HookState
	// interrupt cancels a start in progress: a pull can take long.
	interrupt context.CancelFunc

	// Only the worker's goroutine uses what follows.
	memory lifecycle.Memory
	killBy time.Time
	errors int // of the runtime, in a row
	misses int // of what is needed to start, in a row
	// actuated are the resources that containers have been resized to, by ID; nil before the first
	// sync.
	actuated map[string]v1.ResourceRequirements
	// earlier are the containers made by a previous agent; nil before the first sync.
	earlier map[string]bool
}

func (a *Agent) newWorker(pod *v1.Pod, static bool) *worker {
	return &worker{
		agent: a, uid: pod.UID, made: time.Now(), woken: make(chan struct{}, 1), pod: pod, static: static,
		stops: map[string]time.Time{}, hooks: map[string]lifecycle.HookState{},
	}
}

// wake triggers a sync. It never blocks.
func (w *worker) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// breakOff cancels a start in progress, because the pod is to end.
func (w *worker) breakOff() {
	w.mu.Lock()
	interrupt := w.interrupt
	w.mu.Unlock()
	if interrupt != nil {
		interrupt()
	}
	w.wake()
}

// toEnd reports whether the pod has to end.
func (w *worker) toEnd() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone || w.evicted != nil || w.pod.DeletionTimestamp != nil
}

// starting returns the context of a start: it ends when the pod has to end.
func (w *worker) starting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	w.interrupt = cancel
	w.mu.Unlock()
	if w.toEnd() {
		cancel()
	}
	return ctx, cancel
}

// run runs until the pod is gone, or the agent ends: then its containers are left as they are.
func (w *worker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.woken:
		case <-timer.C:
		}
		wait, done := w.sync(ctx)
		if done {
			return
		}
		timer.Reset(wait)
	}
}

const (
	// lookAgain is how often a pod is synced if nothing happens, as by the kubelet.
	lookAgain = time.Minute
	// retryMost bounds the pause after errors of the runtime.
	retryMost = 5 * time.Second
)

// sync examines the pod once and does what is due. It returns how long to wait, and whether the pod
// is gone for good.
func (w *worker) sync(ctx context.Context) (wait time.Duration, done bool) {
	pod, ending := w.wanted()
	if pod == nil {
		return lookAgain, false
	}
	if !w.admit(ctx, pod, ending) {
		return lookAgain, false
	}
	began := time.Now()
	defer func() { w.agent.kubelet.Synced(time.Since(began)) }()
	if w.asksForResize() {
		w.agent.retryResizes()
		pod, ending = w.wanted()
	}
	seen, err := w.agent.runtime.Seen(ctx, w.uid)
	if err != nil {
		return w.failed("cannot see the pod in the container runtime", err), false
	}
	w.setRight(&seen)
	w.setSizes(pod, &seen)
	out := lifecycle.Decide(w.input(pod, seen, ending))
	w.addDeviceHealth(pod, &out.Status)
	w.report(pod, out)
	if out.Ends {
		w.agent.prober.Leave(w.uid)
	}
	if err := w.perform(ctx, pod, seen, out.Actions, ending != nil); err != nil {
		return w.failed("cannot bring the pod where it is to be", err), false
	}
	w.errors = 0
	if out.Done && len(out.Actions) == 0 {
		return w.ended(ctx, pod, seen, ending)
	}
	if len(out.Actions) > 0 {
		// The effect is checked soon: stops and hooks wake the worker when they end.
		if acted(out.Actions) {
			w.wake()
		}
	}
	return w.until(out.Wake), false
}

// setRight corrects what the runtime reports after a previous agent was killed. If a container was
// being started at that time, the runtime gives up, at once or a moment later, and reports a
// failure of the container, which has never run. It is created again, and that does not count as a
// restart.
func (w *worker) setRight(seen *lifecycle.Seen) {
	if w.earlier == nil {
		w.earlier = map[string]bool{}
		for i := range seen.Containers {
			w.earlier[seen.Containers[i].ID] = w.takenUp
		}
	}
	for i := range seen.Containers {
		c := &seen.Containers[i]
		if w.earlier[c.ID] && c.State == lifecycle.Exited && c.Reason == "StartError" && c.StartedAt.UnixNano() <= 0 {
			c.State = lifecycle.Created
		}
	}
}

// acted reports whether an action has changed what the runtime shows.
func acted(actions []lifecycle.Action) bool {
	for _, a := range actions {
		if a.Kind != lifecycle.StopContainer && a.Kind != lifecycle.PreStop {
			return true
		}
	}
	return false
}

func (w *worker) until(t time.Time) time.Duration {
	if t.IsZero() {
		return lookAgain
	}
	return min(max(time.Until(t), 10*time.Millisecond), lookAgain)
}

func (w *worker) failed(what string, err error) time.Duration {
	w.errors++
	wait := min(200*time.Millisecond<<min(w.errors, 6), retryMost)
	klog.ErrorS(err, what, "pod", klog.KObj(w.object()), "uid", w.uid, "retry", wait)
	return wait
}

func (w *worker) object() *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// wanted is the pod as it should be, and why it has to end, if it has to.
func (w *worker) wanted() (*v1.Pod, *lifecycle.Ending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ending := w.evicted
	if !w.gone && w.pod.DeletionTimestamp == nil {
		return w.pod, ending
	}
	// The grace period begins when this agent sees the deletion, however long ago that was: whether
	// another agent has told the containers to end is not known. A second deletion with a shorter
	// grace period can bring the end forward, but not postpone it.
	by := time.Now().Add(lifecycle.GraceOf(w.pod))
	if w.killBy.IsZero() || by.Before(w.killBy) {
		w.killBy = by
	}
	out := lifecycle.Ending{By: w.killBy}
	if ending != nil {
		out = *ending
		if w.killBy.Before(out.By) {
			out.By = w.killBy
		}
	}
	out.Gone = true
	return w.pod, &out
}

func (w *worker) input(pod *v1.Pod, seen lifecycle.Seen, ending *lifecycle.Ending) lifecycle.Input {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := pod.Status
	if w.reported != nil {
		old = *w.reported
	}
	return lifecycle.Input{
		Pod: pod, Old: old, Seen: seen, Ending: ending, Memory: &w.memory, Static: w.static,
		Verdicts: w.agent.verdicts(pod, seen), PreStop: maps.Clone(w.hooks),
		HostIPs: w.agent.hostIPs(), Now: time.Now(), Pending: w.pending, ResizeGeneration: w.resizeGeneration,
		RecursiveReadOnly: w.agent.recursiveReadOnly(pod),
	}
}

// report publishes the status.
func (w *worker) report(pod *v1.Pod, out lifecycle.Output) {
	w.mu.Lock()
	status := out.Status
	before := w.reported
	w.reported = &status
	over := out.Done
	w.over = w.over || over
	w.mu.Unlock()
	if over {
		w.agent.devices.Free(w.uid) // before the scheduler hears of it and sends another pod
	} else {
		w.agent.prober.Sync(pod, &status)
	}
	if runsNow := status.Phase == v1.PodRunning && !w.takenUp; runsNow && (before == nil || before.Phase == v1.PodPending) {
		w.agent.kubelet.Started(time.Since(w.made))
	}
	w.agent.tellWaits(pod, before, status)
	resized := w.agent.tellResize(pod, before, status)
	if over {
		w.agent.pinning.release(w.uid) // before the scheduler hears that there is room
	}
	if before == nil || !apiequality.Semantic.DeepEqual(*before, status) {
		w.agent.statuses.set(w, status)
	}
	if over {
		w.agent.roomMade()
	} else if resized {
		w.agent.retryResizes()
	}
}

// known is the pod with the status that the agent has of it.
func (w *worker) known() *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reported == nil {
		return w.pod
	}
	copied := *w.pod
	copied.Status = *w.reported
	return &copied
}

// ended frees what the pod had of the node. If the pod is over but not deleted, its containers and
// logs are kept for inspection.
func (w *worker) ended(ctx context.Context, pod *v1.Pod, seen lifecycle.Seen, ending *lifecycle.Ending) (time.Duration, bool) {
	if err := w.agent.release(ctx, w.uid); err != nil {
		return w.failed("cannot free what the pod had", err), false
	}
	w.mu.Lock()
	w.released = true
	w.mu.Unlock()
	if ending == nil || !ending.Gone {
		return lookAgain, false
	}
	if !seen.Empty() {
		return 0, false
	}
	w.agent.forgetLogs(pod)
	w.mu.Lock()
	gone := w.gone
	w.mu.Unlock()
	if !gone {
		w.agent.statuses.remove(w)
		return lookAgain, false
	}
	w.agent.pods.drop(w)
	w.agent.statuses.drop(w)
	return 0, true
}
