// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestConditionsHaveTheTimeOfClocksOnWalls verifies that the times of conditions follow the wall
// clock as reported by WallSet, not the core's clock.
func TestConditionsHaveTheTimeOfClocksOnWalls(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p", UID: "u"},
		Spec:       v1.PodSpec{SchedulerName: v1.DefaultSchedulerName},
	}
	for _, e := range []Event{Follows{}, WallSet{Ahead: time.Hour}, Led{}, Seen{Kind: Pods, Object: pod}} {
		core.Step(now, e)
	}
	for _, action := range core.Step(now, Tick{}) {
		if a, ok := action.(WriteStatus); ok {
			if at := a.Condition.LastTransitionTime; !at.Time.Equal(now.Add(time.Hour)) {
				t.Errorf("the condition says %v", at)
			}
			return
		}
	}
	t.Error("no condition is written")
}
