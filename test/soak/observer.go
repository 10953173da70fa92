// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// window is the maximum age of the state that a component acts on. It covers the longest fault
	// of the component and two delayed requests.
	window = longestTrouble + 2*longestDelay + 10*time.Second
	// remembers is the time for which the observer keeps past events.
	remembers = 3 * window
	// inexact is the tolerance for comparing times: two watches show events with different delays,
	// and API objects contain times in whole seconds.
	inexact = 3 * time.Second
)

// observer checks Berth's promises. It receives the events of all nodes, pods and budgets, watched
// directly at the API server, together with their times, so that tests can simulate events.
type observer struct {
	found  func(promise, what string, about ...string)
	checks *counts
	// silence is the maximum time without a heartbeat before a node must be tainted.
	silence time.Duration

	mu      sync.Mutex // guards the fields below
	nodes   map[string]*nodeSeen
	pods    map[types.UID]*podSeen
	budgets map[types.UID]*budgetSeen
	// deleted holds the time of a controller's last deletion or eviction request for a pod, by
	// namespace/name.
	deleted map[string]time.Time
	// blind holds, by resource, the last period of possibly missed changes.
	blind map[string]span
	// waited holds the pods that are no longer pending, with their priority and the end of their
	// wait.
	waited []waitedPod
	// fair is the total time during which the controllers were healthy. Only this time counts as a
	// delay; see evicted.go.
	fair     time.Duration
	reported map[string]bool // promises and subjects of reported violations
	left     []leftLate      // pods that left because of a taint
}

type span struct{ from, to time.Time }

type podSeen struct {
	pod     *v1.Pod
	demand  demand
	boundAt time.Time // time at which the binding was seen
	late    struct {
		due  bool
		fair time.Duration // value of observer.fair at the due time
		at   time.Time     // time at which the pod was first seen to be due
	}
	wasLeaving bool
}

func newObserver(silence time.Duration, found func(promise, what string, about ...string)) *observer {
	return &observer{
		found: found, checks: newCounts(), silence: silence,
		nodes: map[string]*nodeSeen{}, pods: map[types.UID]*podSeen{}, budgets: map[types.UID]*budgetSeen{},
		deleted: map[string]time.Time{}, blind: map[string]span{}, reported: map[string]bool{},
	}
}

// reportOnce reports a violation only once per promise and subject.
func (w *observer) reportOnce(promise string, about string, format string, args ...any) {
	if w.reported[promise+about] {
		return
	}
	w.reported[promise+about] = true
	w.found(promise, fmt.Sprintf(format, args...), about)
}

func (w *observer) noteDeletion(pod string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deleted[pod] = now
}

// seeObject records the current state of an object. After a gap in the watch, the state may differ
// from the previous one by more than one change.
func (w *observer) seeObject(object any, now time.Time, gap *span) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := object.(type) {
	case *v1.Node:
		w.seesNode(o, now, gap)
	case *v1.Pod:
		w.seesPod(o, now)
	case *policyv1.PodDisruptionBudget:
		w.seesBudget(o, now, gap)
	}
}

// missObject records the disappearance of an object.
func (w *observer) missObject(object any, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := object.(type) {
	case *v1.Node:
		delete(w.nodes, o.Name)
	case *v1.Pod:
		w.missesPod(o, now)
	case *policyv1.PodDisruptionBudget:
		delete(w.budgets, o.UID)
	}
}

// seeListed removes the objects that are not in a complete list, and records the gap before the
// list. present holds the UIDs of the listed objects.
func (w *observer) seeListed(resource string, present map[types.UID]bool, now time.Time, gap *span) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if gap != nil {
		w.blind[resource] = *gap
	}

	for uid, p := range w.pods {
		if resource == "pods" && !present[uid] {
			w.noteServed(p, now)
			delete(w.pods, uid)
		}
	}

	for name, n := range w.nodes {
		if resource == "nodes" && !present[n.node.UID] {
			delete(w.nodes, name)
		}
	}

	for uid := range w.budgets {
		if resource == "poddisruptionbudgets" && !present[uid] {
			delete(w.budgets, uid)
		}
	}
}

// sawAll reports whether no change to these resources can have been missed since the given time.
func (w *observer) sawAll(since time.Time, resources ...string) bool {
	for _, resource := range resources {
		if w.blind[resource].to.After(since) {
			return false
		}
	}
	return true
}

func (w *observer) seesPod(pod *v1.Pod, now time.Time) {
	p := w.pods[pod.UID]
	if p == nil {
		p = &podSeen{demand: demandOf(pod)}
		w.pods[pod.UID] = p
	}
	before := p.pod
	p.pod = pod
	w.checkBound(p, before, now)
	if before != nil && isWaiting(before) && !isWaiting(pod) {
		w.noteServed(&podSeen{pod: before}, now)
	}
	leaves := pod.DeletionTimestamp != nil
	if leaves && !p.wasLeaving && before != nil {
		w.checkLeaving(p, now)
	}
	p.wasLeaving = leaves
}

func (w *observer) missesPod(pod *v1.Pod, now time.Time) {
	p := w.pods[pod.UID]
	if p == nil {
		return
	}
	p.pod = pod
	if !p.wasLeaving {
		w.checkLeaving(p, now)
	}
	w.noteServed(p, now)
	delete(w.pods, pod.UID)
}

// isWaiting reports whether a pod waits for a scheduler: it is not bound, terminating or gated.
func isWaiting(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0
}

// checkLeaving checks, once per pod, the cause of its termination.
func (w *observer) checkLeaving(p *podSeen, now time.Time) {
	switch reason, message := disruptionOf(p.pod); reason {
	case "DeletionByTaintManager":
		w.checkJust(p, now)
		w.left = append(w.left, p.leftLate(now))
	case v1.PodReasonPreemptionByScheduler:
		w.checkPreemption(p, message, now)
	case "EvictionByEvictionAPI":
		w.checkBudgets(p, "the Eviction API", now)
	}
}

// disruptionOf returns the cause of a pod's termination from its condition. The condition may
// remain from an earlier disruption that did not take place, so the pod may terminate for another
// reason.
func disruptionOf(pod *v1.Pod) (reason, message string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue {
			return c.Reason, c.Message
		}
	}
	return "", ""
}

// forgetOld drops expired records.
func (w *observer) forgetOld(now time.Time) {
	for _, n := range w.nodes {
		n.forgetBefore(now.Add(-remembers))
	}
	for pod, at := range w.deleted {
		if now.Sub(at) > remembers {
			delete(w.deleted, pod)
		}
	}
	kept := w.waited[:0]
	for _, one := range w.waited {
		if now.Sub(one.until) < remembers {
			kept = append(kept, one)
		}
	}
	w.waited = kept
}

func podKey(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }
