// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionguard

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEvictionsAreHeldUntilTheControllerOrTheDeadlineAdmitsThem(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }
	for name, c := range map[string]struct {
		requested, status string
		first             time.Duration // age of the caller's first eviction
		admit, record     bool
		reason            string
	}{
		"the first eviction":                 {record: true},
		"without a status yet":               {requested: ago(10 * time.Second), first: 10 * time.Second},
		"held":                               {requested: ago(2 * time.Minute), status: Held + "waiting", first: 2 * time.Minute},
		"admitted by the controller":         {requested: ago(5 * time.Second), status: Admitted + "cannot surge", admit: true, reason: "controller"},
		"no controller":                      {requested: ago(31 * time.Second), admit: true, reason: "unanswered"},
		"after the deadline":                 {requested: ago(11 * time.Minute), status: Held + "waiting", admit: true, reason: "deadline"},
		"rewritten again and again":          {requested: ago(0), status: Held + "waiting", first: 10 * time.Minute, admit: true, reason: "deadline"},
		"of an evictor that gave up":         {requested: ago(time.Hour), status: Held + "waiting", record: true},
		"of an evictor that gave up earlier": {requested: ago(time.Hour), status: Admitted + "cannot surge", record: true},
		"in the future":                      {requested: ago(-24 * time.Hour), status: Held + "waiting", record: true},
		"unreadable":                         {requested: "soon", status: Admitted + "me", record: true},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{RequestedAnnotation: c.requested, StatusAnnotation: c.status}}}
		options := DefaultOptions()
		got := options.Judge(pod, now, now.Add(-c.first), time.Time{})
		if got.Admit != c.admit || got.First != c.record || got.Reason != c.reason || (got.Message == "") != c.admit {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestOnlyReadyPodsOfReplicaSetsAreGuarded(t *testing.T) {
	owned := func(kind string) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "web", UID: "1", Controller: new(true)}}},
			Status:     v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
		}
	}
	options := DefaultOptions()
	if !options.Holds(owned("ReplicaSet")) {
		t.Error("a ready pod of a ReplicaSet is not guarded")
	}
	unready, ending, done, bare := owned("ReplicaSet"), owned("ReplicaSet"), owned("ReplicaSet"), owned("ReplicaSet")
	unready.Status.Conditions[0].Status = v1.ConditionFalse
	ending.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	done.Status.Phase = v1.PodSucceeded
	bare.OwnerReferences = nil
	for name, pod := range map[string]*v1.Pod{"unready": unready, "terminating": ending, "finished": done, "bare": bare, "of a StatefulSet": owned("StatefulSet")} {
		if options.Holds(pod) {
			t.Errorf("a pod is guarded: %s", name)
		}
	}
}
