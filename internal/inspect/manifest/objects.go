// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects returns all objects of the set, kind by kind in the order of Kinds. The caller owns the
// slice, but not the objects.
func (s *Set) Objects() (all []metav1.Object) {
	for _, k := range ordered {
		all = append(all, k.list(s)...)
	}
	return all
}

// OfKind lists the objects of a kind.
func (s *Set) OfKind(kind string) []metav1.Object { return kinds[kind].list(s) }

// Controllers lists the objects of pod-creating controllers.
func (s *Set) Controllers() (all []metav1.Object) {
	for _, name := range []string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"} {
		all = append(all, s.OfKind(name)...)
	}
	return all
}

// Newest returns the latest time in nodes and pods, or zero without any. It is close to the time at
// which the set was written. Newest trusts all clocks; package simulate detects clocks running
// ahead.
func (s *Set) Newest() (newest time.Time) {
	later := func(t metav1.Time) {
		if t.After(newest) {
			newest = t.Time
		}
	}

	for _, n := range s.Nodes {
		// Creation times are written by the API server, the other times by components.
		later(n.CreationTimestamp)
		for i := range n.Status.Conditions {
			later(n.Status.Conditions[i].LastHeartbeatTime)
			later(n.Status.Conditions[i].LastTransitionTime)
		}
	}

	for _, p := range s.Pods {
		later(p.CreationTimestamp)
		later(conditionTime(p))
	}
	return newest
}

// conditionTime returns the time of the pod's latest condition change, or zero.
func conditionTime(p *v1.Pod) (newest metav1.Time) {
	for i := range p.Status.Conditions {
		if t := p.Status.Conditions[i].LastTransitionTime; t.After(newest.Time) {
			newest = t
		}
	}
	return newest
}
