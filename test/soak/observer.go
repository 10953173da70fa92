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
	// window is the maximum age of the state that a part acts on: trouble of the part and delays of
	// its requests may have lasted so long.
	window = longestTrouble + 2*longestDelay + 10*time.Second
	// remembers is the observer's retention of past events.
	remembers = 3 * window
	// inexact is the maximum difference between times seen on two watches, or written in whole
	// seconds.
	inexact = 3 * time.Second
)

// observer observes all nodes, pods and budgets, directly from the API server, and judges. Events
// are passed with their times, so that tests can simulate them.
type observer struct {
	found  func(promise, what string, about ...string)
	checks *counts
	// silence is the maximum time without a node's sign of life before it must be tainted.
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
	// waited holds pods that were pending, with their priority and the end of their wait.
	waited []waitedPod
	// fair is the total time during which the controllers were well; only this time counts for
	// lateness. See evicted.go.
	fair     time.Duration
	reported map[string]bool // reported subjects
	left     []leftLate      // pods that left because of a taint
}

type span struct{ from, to time.Time }

type podSeen struct {
	pod     *v1.Pod
	demand  demand
	boundAt time.Time // seen
	late    struct {
		due  bool
		fair time.Duration // value of observer.fair at the due time
		at   time.Time     // seen
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

// reportOnce reports a violation, once per subject.
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

// seeObject records the current state of an object. With a gap, it may differ from the previous
// state by more than one change.
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

// seeListed records a complete list after changes may have been missed; present holds the UIDs in
// the list.
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

// sawAll reports whether no change of these resources can have been missed since then.
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

// isWaiting reports whether a pod is pending.
func isWaiting(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0
}

// checkLeaving checks the cause of a pod's termination, once.
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

// disruptionOf returns the cause of a pod's termination from its condition. The pod may have been
// marked and spared before, and terminate for another reason.
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
