// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ownedPod returns a pod of the ReplicaSet web-5d.
func ownedPod(name, node string, created time.Time) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(created),
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5d", Controller: new(true)}}},
		Spec: v1.PodSpec{NodeName: node},
	}
}

// TestDeparturesHaveReasonsAndReplacements verifies that an evicted pod is kept after its removal,
// with its reason, its duration, and the node of the pod that replaces it.
func TestDeparturesHaveReasonsAndReplacements(t *testing.T) {
	c, now := New(), time.Unix(1_000_000, 0)
	c.PodSeen(now, PodOf(ownedPod("web-5d-a", "n1", now.Add(-time.Hour))))
	c.PodSeen(now, PodOf(ownedPod("web-5d-b", "n1", now.Add(-time.Hour))))
	c.Changes(now)
	evicted := ownedPod("web-5d-a", "n1", now.Add(-time.Hour))
	evicted.DeletionTimestamp, evicted.DeletionGracePeriodSeconds = new(metav1.NewTime(now.Add(30*time.Second))), new(int64(30))
	evicted.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "EvictionByEvictionAPI"}}
	c.PodSeen(now.Add(time.Second), PodOf(evicted))
	c.PodSeen(now.Add(2*time.Second), PodOf(ownedPod("web-5d-c", "", now.Add(time.Second))))
	c.Changes(now.Add(2 * time.Second))
	c.PodSeen(now.Add(3*time.Second), PodOf(ownedPod("web-5d-c", "n2", now.Add(time.Second))))
	c.Changes(now.Add(3 * time.Second))
	c.PodGone(now.Add(9*time.Second), "uid-web-5d-a")
	d := c.Changes(now.Add(9 * time.Second)).Departures
	want := Departure{UID: "uid-web-5d-a", Namespace: "shop", Name: "web-5d-a", Workload: "ReplicaSet/web-5d", Node: "n1", Reason: "EvictionByEvictionAPI",
		At: now.UnixMilli(), Gone: now.Add(9 * time.Second).UnixMilli(), Next: "web-5d-c", NextNode: "n2", NextPlaced: now.Add(3 * time.Second).UnixMilli(),
		owner: "ReplicaSet/web-5d", next: "uid-web-5d-c"}
	if len(d) != 1 || d[0] != want {
		t.Errorf("%+v\nwant\n%+v", d, want)
	}
	if all := c.State(now).Departures; len(all) != 1 || all[0] != want {
		t.Errorf("a new page gets %+v", all)
	}
}

// TestDeparturesSurviveARestart verifies that the events of removed pods yield departures with
// replacements, although the pods were never observed.
func TestDeparturesSurviveARestart(t *testing.T) {
	c, now := New(), time.Unix(1_000_000, 0)
	c.EventSeen(EventOf(&v1.Event{ObjectMeta: metav1.ObjectMeta{UID: "e"}, Reason: "Preempted", Source: v1.EventSource{Component: "default-scheduler"},
		LastTimestamp: metav1.NewTime(now), InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-5d-a", UID: "uid-web-5d-a"},
		Message: "Preempted by pod uid-x on node n1"}))
	c.PodSeen(now, PodOf(ownedPod("web-5d-c", "n2", now.Add(time.Second))))
	c.PodSeen(now, PodOf(ownedPod("web-5d-b", "n3", now.Add(-time.Hour))))
	d := c.Changes(now.Add(time.Minute)).Departures
	want := Departure{UID: "uid-web-5d-a", Namespace: "shop", Name: "web-5d-a", Workload: "ReplicaSet/web-5d", Node: "n1", Reason: "Preempted",
		By: "default-scheduler", Message: "Preempted by pod uid-x on node n1", At: now.UnixMilli(), Gone: -1, Next: "web-5d-c", NextNode: "n2",
		owner: "web-5d", next: "uid-web-5d-c"}
	if len(d) != 1 || d[0] != want {
		t.Errorf("%+v\nwant\n%+v", d, want)
	}
}

// TestKeptDeparturesAreBounded verifies that old departures are dropped.
func TestKeptDeparturesAreBounded(t *testing.T) {
	c, now := New(), time.Unix(1_000_000, 0)
	for i := range 3 * mostDepartures {
		name := "web-5d-" + time.Duration(i).String()
		c.PodSeen(now, PodOf(ownedPod(name, "n1", now)))
		c.PodGone(now, types.UID("uid-"+name))
	}
	if n := len(c.State(now).Departures); n > 2*mostDepartures || n < mostDepartures {
		t.Errorf("%d departures are kept", n)
	}
}
