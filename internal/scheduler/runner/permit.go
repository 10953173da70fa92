// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// WaitingPod is a decided pod held by plugins at Permit. Its methods are safe for all goroutines.
// Verdicts of plugins are sent to the core as events, but take effect here immediately.
type WaitingPod struct {
	pod    *v1.Pod
	node   string
	ticket cycle.Ticket // identifies this hold in its events
	see    func(cycle.Event)

	mu      sync.Mutex
	pending map[string]bool // plugins that have not allowed the pod yet
	over    bool            // allowed by all, rejected, or released by the core
}

// Pod returns the pod as of the decision. It is shared and must not be modified.
func (w *WaitingPod) Pod() *v1.Pod { return w.pod }

// Node returns the name of the node chosen for the pod.
func (w *WaitingPod) Node() string { return w.node }

// Pending lists the plugins that have not allowed the pod yet, sorted by name.
func (w *WaitingPod) Pending() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.pending))
}

// Allow ends a plugin's hold on the pod. When the last hold ends, the wait is over and the core
// binds the pod. It has no effect if the plugin does not hold the pod.
func (w *WaitingPod) Allow(plugin string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || !w.pending[plugin] {
		return
	}
	delete(w.pending, plugin)
	w.over = len(w.pending) == 0
	w.see(cycle.PermitAllowed{Ticket: w.ticket, Plugin: plugin})
}

// Reject ends the wait, and the pod is not bound. It returns false if the wait had already ended.
func (w *WaitingPod) Reject(plugin, message string) bool {
	return w.endWait(cycle.PermitRejected{Ticket: w.ticket, Plugin: plugin, Message: message})
}

// Preempt ends the wait because another pod needs the resources; the pod is requeued. It returns
// false if the wait had already ended.
func (w *WaitingPod) Preempt(plugin, message string) bool {
	return w.endWait(cycle.PermitRejected{Ticket: w.ticket, Plugin: plugin, Message: message, Preempted: true})
}

// endWait ends the wait, and returns false if it had already ended. It sends the event with the
// lock held, so that the core gets the events of a pod in the order of their effects. Sending never
// blocks.
func (w *WaitingPod) endWait(why cycle.PermitRejected) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false
	}
	w.over = true
	w.see(why)
	return true
}

// permits holds all waiting pods, for callers on other goroutines. The core keeps its own record of
// them: it requests a hold (Hold), ends the wait because of events or a timeout, and then requests
// the release (Release).
type permits struct {
	mu       sync.RWMutex
	pods     map[types.UID]*WaitingPod // the latest hold of each pod
	byTicket map[cycle.Ticket]*WaitingPod
}

// holdPod adds a pod held by plugins.
func (p *permits) holdPod(see func(cycle.Event), a cycle.Hold) {
	w := &WaitingPod{pod: a.Pod, node: a.Node, ticket: a.Ticket, see: see, pending: map[string]bool{}}
	for plugin := range a.Waits {
		w.pending[plugin] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[a.Pod.UID], p.byTicket[a.Ticket] = w, w
}

// releasePod removes the hold with the ticket, and ends its wait, so that further verdicts of
// plugins have no effect. If the pod is held again under another ticket, that hold stays.
func (p *permits) releasePod(ticket cycle.Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.byTicket[ticket]
	delete(p.byTicket, ticket)
	if p.pods[w.pod.UID] == w {
		delete(p.pods, w.pod.UID)
	}
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
}

// WaitingPod returns a pod waiting at Permit, or nil. Safe for all goroutines.
func (s *Scheduler) WaitingPod(uid types.UID) *WaitingPod {
	s.permits.mu.RLock()
	defer s.permits.mu.RUnlock()
	return s.permits.pods[uid]
}

// EachWaitingPod calls f for every pod waiting at Permit. It holds no lock during the calls, so f
// may allow or reject the pod. Pods released in the meantime are not skipped. Safe for all
// goroutines.
func (s *Scheduler) EachWaitingPod(f func(*WaitingPod)) {
	s.permits.mu.RLock()
	pods := slices.Collect(maps.Values(s.permits.pods))
	s.permits.mu.RUnlock()
	for _, pod := range pods {
		f(pod)
	}
}
