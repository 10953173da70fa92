package live

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/plugins"
)

// WaitingPod is a pod that has been decided and that a plugin at Permit has wait. Its methods are safe for all goroutines.
type WaitingPod struct {
	pod   *v1.Pod
	node  string
	since time.Time

	mu      sync.Mutex
	pending map[string]*time.Timer // plugins that have not allowed it
	over    chan struct{}          // closed when it waits no longer
	verdict error                  // why not, then
	how     string
}

// Pod returns the pod.
func (w *WaitingPod) Pod() *v1.Pod { return w.pod }

// Node names the node that the pod is to be bound to.
func (w *WaitingPod) Node() string { return w.node }

// Pending lists the plugins that have not allowed the pod yet.
func (w *WaitingPod) Pending() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.pending))
}

// Allow says that a plugin has the pod wait no longer.
func (w *WaitingPod) Allow(plugin string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if timer, ok := w.pending[plugin]; ok {
		timer.Stop()
		delete(w.pending, plugin)
		if len(w.pending) == 0 {
			w.end("allowed", nil)
		}
	}
}

// Reject says that the pod is not to be bound. It returns false if it waits no longer.
func (w *WaitingPod) Reject(plugin, message string) bool {
	return w.reject("rejected", plugin, message)
}

// Preempt ends the wait because the pod's room is needed for another one; it is tried again. It returns false if it waits no longer.
func (w *WaitingPod) Preempt(_, message string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end("rejected", fmt.Errorf("waiting on permit for pod: %s", message))
}

func (w *WaitingPod) reject(how, plugin, message string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end(how, &rejection{plugin, &plugins.Rejection{Code: "Permit", Reasons: []string{message}}})
}

// end is called with the lock held.
func (w *WaitingPod) end(how string, verdict error) bool {
	if w.how != "" {
		return false
	}
	w.how, w.verdict = how, verdict
	for _, timer := range w.pending {
		timer.Stop()
	}
	close(w.over)
	return true
}

// waitingPods are all of them.
type waitingPods struct {
	mu   sync.RWMutex
	pods map[types.UID]*WaitingPod
}

// WaitingPod returns a pod that waits at Permit, or nil. Safe for all goroutines.
func (s *Scheduler) WaitingPod(uid types.UID) *WaitingPod {
	s.waiting.mu.RLock()
	defer s.waiting.mu.RUnlock()
	return s.waiting.pods[uid]
}

// EachWaitingPod calls f for every pod that waits at Permit. Safe for all goroutines.
func (s *Scheduler) EachWaitingPod(f func(*WaitingPod)) {
	s.waiting.mu.RLock()
	pods := slices.Collect(maps.Values(s.waiting.pods))
	s.waiting.mu.RUnlock()
	for _, pod := range pods {
		f(pod)
	}
}

// permitted asks the plugins at Permit. A pod that is to wait has b.permit afterwards.
func (s *Scheduler) permitted(b *placement) error {
	if len(b.profile.permit) == 0 {
		return nil
	}
	began := time.Now()
	waits := map[string]time.Duration{}
	for _, p := range b.profile.permit {
		done := s.timing(b, p.Name(), plugins.Permit)
		refused, wait := p.Permit(&b.Attempt)
		done(refused == nil)
		switch {
		case refused != nil && refused.Err != nil:
			return fmt.Errorf("running Permit plugin %q: %w", p.Name(), refused.Err)
		case refused != nil:
			s.observer.Ran(b.Profile, plugins.Permit, false, time.Since(began))
			return &rejection{p.Name(), refused}
		case wait > 0:
			waits[p.Name()] = min(wait, maxPermitWait)
		}
	}
	s.observer.Ran(b.Profile, plugins.Permit, true, time.Since(began))
	if len(waits) > 0 {
		s.hold(b, waits)
	}
	return nil
}

// maxPermitWait is the longest that a pod may wait at Permit, as upstream's.
const maxPermitWait = 15 * time.Minute

// hold has a pod wait. What happens from now on may help it if it is rejected in the end.
func (s *Scheduler) hold(b *placement, waits map[string]time.Duration) {
	w := &WaitingPod{pod: b.Pod, node: b.Node, since: time.Now(), pending: map[string]*time.Timer{}, over: make(chan struct{})}
	w.mu.Lock()
	for name, wait := range waits {
		w.pending[name] = time.AfterFunc(wait, func() {
			w.reject("timed out", name, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", wait, name))
		})
	}
	w.mu.Unlock()
	b.permit = w
	s.waiting.mu.Lock()
	s.waiting.pods[b.Pod.UID] = w
	s.waiting.mu.Unlock()
	s.wake() // its own coming is none of what may help it
	s.queue.Held(b.item)
	s.held++
}

// await waits until the pod may be bound, or may not.
func (s *Scheduler) await(ctx context.Context, w *WaitingPod) error {
	var err error
	select {
	case <-w.over:
		err = w.verdict
	case <-ctx.Done():
		err = context.Cause(ctx)
		w.mu.Lock()
		w.end("rejected", err)
		w.mu.Unlock()
	}
	s.waiting.mu.Lock()
	delete(s.waiting.pods, w.pod.UID)
	s.waiting.mu.Unlock()
	s.observer.Permitted(w.how, time.Since(w.since))
	s.inbox.put(func() { s.held-- })
	return err
}
