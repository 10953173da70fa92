// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// readiness is the state of a pod on its node, as reported by kubelets and node health.
type readiness struct {
	// unready means that the pod counts in budgets.unready, and not as healthy in its budgets.
	unready bool
	// marked is the time at which node health marked the ready pod as not ready; zero for other
	// pods.
	marked time.Time
	// starved means that the kubelet is evicting the pod and its grace period is running.
	starved bool
	// turnedAway means that the kubelet did not admit the pod; its containers never run.
	turnedAway bool
}

// markUnready marks the pods of a node as not ready on behalf of node health: their budgets have
// fewer healthy pods and allow fewer disruptions.
func (s *pods) markUnready(node string) {
	for _, p := range s.podsOn(node) {
		if !p.unready && !p.Terminating {
			p.unready, p.marked = true, s.clock.time()
			s.budgets.unready[p.Class]++
			s.budgets.podLeft(p.Pod)
			s.scheduler.keepObject(p, p.object)
		}
	}
}

// unmarkUnready makes the kubelet of a recovered node report its pods as ready again. Pods unready
// before the node failed stay unready.
func (s *pods) unmarkUnready(node string) {
	for _, p := range s.podsOn(node) {
		if p.unready && !p.marked.IsZero() && !p.Terminating {
			p.unready, p.marked = false, time.Time{}
			s.budgets.unready[p.Class]--
			s.budgets.podJoined(p.Pod)
			s.scheduler.keepObject(p, p.object)
		}
	}
}

// unreadySince returns the time since which a pod is not ready. It returns zero if the pod is ready
// or the time is unknown.
func (p *pod) unreadySince() (since time.Time) {
	if !p.unready || !p.marked.IsZero() {
		return p.marked
	}
	for i := range p.object.Status.Conditions {
		if c := &p.object.Status.Conditions[i]; c.Type == v1.PodReady {
			since = c.LastTransitionTime.Time
		}
	}
	return since
}

// podsOn lists the pods on a node, including terminating ones, by name. It is empty for an unknown
// node.
func (s *pods) podsOn(name string) []*pod {
	n := s.scheduler.c.Node(name)
	if n == nil {
		return nil
	}
	var list []*pod
	for _, p := range n.Pods {
		if known := s.placed[p.UID]; known != nil {
			list = append(list, known)
		}
	}
	slices.SortFunc(list, func(a, b *pod) int { return nameOf(a).compare(nameOf(b)) })
	return list
}

// endedOn lists the ended pods on a node by name. The core does not track them, because they take
// no room.
func (s *pods) endedOn(node string) []*pod {
	var list []*pod
	for p := range s.ended {
		if p.object.Spec.NodeName == node {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *pod) int { return nameOf(a).compare(nameOf(b)) })
	return list
}
