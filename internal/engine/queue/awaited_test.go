// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

func TestHowManyComeBefore(t *testing.T) {
	q, now := New(), time.Unix(0, 0)
	add := func(name string, priority int32) *Item {
		now = now.Add(time.Second)
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: &priority}}
		return q.Add(pod, &cluster.PodClass{}, now)
	}
	low, high, late := add("low", 0), add("high", 10), add("late", 10)
	for item, want := range map[*Item]int{high: 0, late: 1, low: 2} {
		if got := q.Ahead(item); got != want {
			t.Errorf("%d before %s, want %d", got, item.Pod.Name, want)
		}
	}
	taken := q.Pop(now)
	q.Rejected(taken, []string{"NodeName"}, nil, now)
	if q.Ahead(taken) != 0 || q.Ahead(late) != 0 || q.Ahead(low) != 1 {
		t.Errorf("%d, %d and %d before those that are left", q.Ahead(taken), q.Ahead(late), q.Ahead(low))
	}
	if a := q.Awaits(taken); len(a) != 1 || a[0].Plugin != "NodeName" || len(a[0].Events) != 1 || a[0].Events[0] != "*" {
		t.Errorf("a pod whose plugin says nothing of what helps it awaits %v", a)
	}
	if a := q.Awaits(low); a != nil {
		t.Errorf("an active pod awaits %v", a)
	}
}

func TestActionsAreNamedAsUpstreamNamesThem(t *testing.T) {
	for want, action := range map[string]Action{
		"":                                   0,
		"Add":                                Add,
		"Add|UpdateNodeLabel":                Add | UpdateNodeLabel,
		"Update":                             Update,
		"Add|Update":                         Add | Update,
		"Delete|UpdatePodScaleDown":          Delete | UpdatePodScaleDown,
		"UpdatePodGeneratedResourceClaim":    UpdatePodGeneratedResourceClaim,
		"*":                                  All,
		"UpdatePodLabel|UpdatePodToleration": UpdatePodLabel | UpdatePodToleration,
	} {
		if got := action.String(); got != want {
			t.Errorf("%b is %q, want %q", action, got, want)
		}
	}
}
