package pressure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	// glance is how often the signals are read: a few small files.
	glance = time.Second
	// look is how often pods' own limits are checked, and the pause after no pod could be evicted:
	// measuring pods walks through their volumes. It is the kubelet's interval.
	look = 10 * time.Second
	// walkPatience is how long measuring disks may take. A pod that has not been measured by then
	// counts with what is known.
	walkPatience = 2 * time.Minute
	// cleanup is how long an evicted pod may take to go before the next one is evicted.
	cleanup = 30 * time.Second
)

// Stats is what the node and its pods use.
type Stats interface {
	Levels(ctx context.Context) (Levels, error)
	// Summary measures pods: only their CPU and memory, or their disks, too.
	Summary(ctx context.Context, cpuAndMemory bool) (*stats.Summary, error)
}

// Node is what the watcher reads and acts on.
type Node struct {
	Stats Stats
	// Pods that are neither done nor failed.
	Pods func() []*v1.Pod
	// Evict kills the pod and marks it failed. It returns once that has begun.
	Evict func(context.Context, Eviction) error
	// Gone reports whether nothing of the pod runs, and its volumes are freed.
	Gone func(types.UID) bool
	// Images and Containers remove images that no container uses, and dead containers. Nil: not
	// possible.
	Images, Containers func(context.Context) error
	// Event about the pod, or about the node if pod is nil.
	Event func(pod *v1.Pod, annotations map[string]string, kind, reason, message string)
	// Changed is called when the result of Conditions has changed.
	Changed func()
	// Nudge receives a value when the kernel reports a change: the signals are then read
	// immediately, not only every second. Nil: the kernel reports none.
	Nudge <-chan struct{}
	// Arm is called at every reading with how far memory is above its thresholds, of the machine
	// and of all pods, so that the kernel can be asked to report when it no longer is; nil: it is
	// not asked.
	Arm func(machine, pods int64)
}

// Watcher relieves a node's pressure.
type Watcher struct {
	node Node
	core *Core
	// Only Run's goroutine uses these: when the next look is due, and the next attempt to free what
	// is starved.
	nextLook, nextAttempt time.Time
	// walk is a measurement of disks in progress, and sweep a removal of images and dead
	// containers; nil: none. There is at most one of each.
	walk  chan walked
	sweep chan struct{}

	mu         sync.Mutex
	conditions []v1.NodeConditionType
}

// New reads the configuration; Run begins to watch.
func New(config Config, node Node) (*Watcher, error) {
	core, err := NewCore(config)
	if err != nil {
		return nil, err
	}
	return &Watcher{node: node, core: core}, nil
}

// Conditions returns those that are true now: MemoryPressure, DiskPressure, PIDPressure.
func (w *Watcher) Conditions() []v1.NodeConditionType {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.conditions)
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := w.step(ctx, time.Now()); err != nil && ctx.Err() == nil {
			logger.Error(err, "Cannot see whether the node is under pressure")
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case <-w.node.Nudge:
		}
	}
}

func (w *Watcher) step(ctx context.Context, now time.Time) error {
	levels, verdict, err := w.observe(ctx, now)
	if err != nil {
		return err
	}
	if !now.Before(w.nextLook) {
		w.nextLook = now.Add(look)
		switch evicted, err := w.enforceLimits(ctx, levels); {
		case errors.Is(err, errShortMeanwhile):
			if _, verdict, err = w.observe(ctx, time.Now()); err != nil {
				return err
			}
		case evicted || err != nil:
			return err
		}
	}
	if verdict.Starved == nil || now.Before(w.nextAttempt) {
		return nil
	}
	evicted, err := w.relieve(ctx, verdict.Starved)
	if !evicted {
		w.nextAttempt = now.Add(look)
	}
	return err
}

// observe reads the signals and publishes the resulting conditions.
func (w *Watcher) observe(ctx context.Context, now time.Time) (Levels, Verdict, error) {
	levels, err := w.node.Stats.Levels(ctx)
	if err != nil {
		return levels, Verdict{}, fmt.Errorf("read the signals: %w", err)
	}
	verdict := w.core.Step(levels, now)
	w.publish(ctx, verdict.Conditions)
	if w.node.Arm != nil {
		w.node.Arm(w.core.margin(Memory, levels), w.core.margin(AllocatableMemory, levels))
	}
	return levels, verdict, nil
}

func (w *Watcher) publish(ctx context.Context, conditions []v1.NodeConditionType) {
	w.mu.Lock()
	changed := !slices.Equal(conditions, w.conditions)
	w.conditions = conditions
	w.mu.Unlock()
	if changed {
		klog.FromContext(ctx).Info("The node's pressure has changed", "conditions", conditions)
		w.node.Changed()
	}
}

// enforceLimits evicts the pods that use more disk than their own limits allow.
func (w *Watcher) enforceLimits(ctx context.Context, levels Levels) (evicted bool, err error) {
	pods := slices.DeleteFunc(w.node.Pods(), func(pod *v1.Pod) bool { return !diskLimited(pod) })
	if len(pods) == 0 {
		return false, nil
	}
	candidates, err := w.measure(ctx, pods, false)
	if err != nil {
		return false, err
	}
	evictions := OverLimits(candidates, levels.ImagesApart)
	for _, eviction := range evictions {
		w.evict(ctx, eviction)
	}
	for _, eviction := range evictions {
		w.awaitGone(ctx, eviction.Pod.UID)
	}
	return len(evictions) > 0, nil
}

// diskLimited reports whether a pod has limits on disk, so that it has to be measured.
func diskLimited(pod *v1.Pod) bool {
	for _, volume := range pod.Spec.Volumes {
		if volume.EmptyDir != nil && volume.EmptyDir.SizeLimit != nil {
			return true
		}
	}
	for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if _, limited := container.Resources.Limits[v1.ResourceEphemeralStorage]; limited {
			return true
		}
	}
	return false
}

// relieve frees what is starved, at the cost of one pod at most.
func (w *Watcher) relieve(ctx context.Context, starved *Starved) (evicted bool, err error) {
	logger := klog.FromContext(ctx)
	w.node.Event(nil, nil, v1.EventTypeWarning, "EvictionThresholdMet", fmt.Sprintf("Attempting to reclaim %s", starved.Resource))
	switch enough, err := w.reclaim(ctx, starved); {
	case errors.Is(err, errShortMeanwhile):
		return true, nil // what is short now comes first, at the next reading
	case err != nil:
		return false, err
	case enough:
		logger.Info("Freed enough without evicting pods", "resource", starved.Resource)
		return false, nil
	}
	candidates, err := w.measure(ctx, w.node.Pods(), !starved.Signal.isDisk())
	if errors.Is(err, errShortMeanwhile) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	victim := Victim(starved, Rank(starved, candidates))
	if victim == nil {
		logger.Info("Must free a resource, and there is no pod that may be evicted for it", "signal", starved.Signal, "pods", len(candidates))
		return false, nil
	}
	w.evict(ctx, *victim)
	w.awaitGone(ctx, victim.Pod.UID)
	return true, nil
}

// reclaim removes dead containers and unused images if they are on the full disk, and checks
// whether that is enough. Like measuring it runs in the background: a runtime may take its time.
func (w *Watcher) reclaim(ctx context.Context, starved *Starved) (enough bool, err error) {
	removals := w.removals(starved)
	if len(removals) == 0 {
		return false, nil
	}
	if w.sweep == nil {
		done := make(chan struct{})
		w.sweep = done
		go func() {
			defer close(done)
			for _, remove := range removals {
				if err := remove(ctx); err != nil {
					klog.FromContext(ctx).Error(err, "Cannot free what no pod needs", "resource", starved.Resource)
				}
			}
		}()
	}
	if _, err := await(ctx, w, w.sweep); err != nil {
		return false, err
	}
	w.sweep = nil
	levels, err := w.node.Stats.Levels(ctx)
	return err == nil && w.core.Relieved(levels), nil
}

// removals returns those that free the full disk: of dead containers if their layers are on it, of
// images if these are.
func (w *Watcher) removals(starved *Starved) (all []func(context.Context) error) {
	if !starved.Signal.isDisk() {
		return nil
	}
	layers, images := starved.holds()
	if layers && w.node.Containers != nil {
		all = append(all, w.node.Containers)
	}
	if images && w.node.Images != nil {
		all = append(all, w.node.Images)
	}
	return all
}

// measure pairs pods with what they use.
func (w *Watcher) measure(ctx context.Context, pods []*v1.Pod, cpuAndMemory bool) ([]Candidate, error) {
	summary, err := w.summary(ctx, cpuAndMemory)
	if errors.Is(err, errShortMeanwhile) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("measure the pods: %w", err)
	}
	usages := map[string]*stats.PodStats{}
	for i := range summary.Pods {
		usages[summary.Pods[i].PodRef.UID] = &summary.Pods[i]
	}
	candidates := make([]Candidate, len(pods))
	for i, pod := range pods {
		candidates[i] = Candidate{pod, usages[string(pod.UID)]}
	}
	return candidates, nil
}

// errShortMeanwhile: something other than disk has become short while disks were measured.
var errShortMeanwhile = errors.New("memory or PIDs are short")

type walked struct {
	summary *stats.Summary
	err     error
}

// summary measures the pods. Disks are measured in the background: walking through hundreds of
// thousands of files takes longer than memory lasts. A measurement that was not waited for is used
// by the next call.
func (w *Watcher) summary(ctx context.Context, cpuAndMemory bool) (*stats.Summary, error) {
	if cpuAndMemory {
		return w.node.Stats.Summary(ctx, true)
	}
	if w.walk == nil {
		done := make(chan walked, 1)
		w.walk = done
		go func() {
			ctx, cancel := context.WithTimeout(ctx, walkPatience)
			defer cancel()
			summary, err := w.node.Stats.Summary(ctx, false)
			done <- walked{summary, err}
		}()
	}
	found, err := await(ctx, w, w.walk)
	if err != nil {
		return nil, err
	}
	w.walk = nil
	return found.summary, found.err
}

// await waits for background work. Meanwhile the signals are read as usual, and if anything other
// than disk becomes short, it stops waiting.
func await[T any](ctx context.Context, w *Watcher, done <-chan T) (result T, err error) {
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return result, ctx.Err()
		case result = <-done:
			return result, nil
		case <-ticker.C:
		case <-w.node.Nudge:
		}
		_, verdict, err := w.observe(ctx, time.Now())
		if err != nil {
			return result, err
		}
		if verdict.Starved != nil && !verdict.Starved.Signal.isDisk() {
			return result, errShortMeanwhile
		}
	}
}

func (w *Watcher) evict(ctx context.Context, eviction Eviction) {
	logger := klog.FromContext(ctx)
	logger.Info("Evicting a pod", "pod", klog.KObj(eviction.Pod), "podUID", eviction.Pod.UID, "message", eviction.Message)
	w.node.Event(eviction.Pod, eviction.Annotations, v1.EventTypeWarning, Reason, eviction.Message)
	if err := w.node.Evict(ctx, eviction); err != nil {
		logger.Error(err, "Cannot evict the pod", "pod", klog.KObj(eviction.Pod))
	}
}

// awaitGone waits until what the pod used is free, so that no second pod is evicted for it.
// Conditions are updated meanwhile.
func (w *Watcher) awaitGone(ctx context.Context, uid types.UID) {
	ctx, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	ticker := time.NewTicker(glance / 5)
	defer ticker.Stop()
	for !w.node.Gone(uid) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if _, _, err := w.observe(ctx, time.Now()); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot see whether the node is under pressure")
			}
		}
	}
}
