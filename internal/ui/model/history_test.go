// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/ui/model"
)

// going returns a pod with the condition DisruptionTarget, for a reason.
func going(name, on, cause string) *v1.Pod {
	p := pod(name, on)
	p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: cause})
	return p
}

func unready(n *v1.Node) *v1.Node {
	n.Status.Conditions[0].Status = v1.ConditionUnknown
	return n
}

func TestWhatHappenedIsKeptByTime(t *testing.T) {
	c := model.New()
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	see(c, at(0), node("node-1", "z1"), pod("a", "node-1"), pod("b", "node-1"), pod("c", "node-1"), pod("d", "node-1"), going("was-going", "node-1", "DeletionByTaintManager"))
	c.Changes(at(0))
	see(c, at(3), going("a", "node-1", "DeletionByTaintManager"), going("b", "node-1", "PreemptionByScheduler"), pending("w1", "no"), pending("w2", "no"))
	see(c, at(4), going("a", "node-1", "DeletionByTaintManager")) // a repeated observation is not another eviction
	c.Changes(at(5))
	see(c, at(6), pod("w1", "node-1"), unready(node("node-1", "z1")), unready(node("node-1", "z1")))
	d := c.Changes(at(6))
	if len(d.History) != 1 {
		t.Fatalf("what changed: %v", d.History)
	}
	see(c, at(65), going("c", "node-1", "EvictionByEvictionAPI"), going("d", "node-1", "SomethingElse"))
	d = c.Changes(at(65))
	want := []model.Moment{
		{noon.UnixMilli(), 1, 1, 1, 2},   // at most two pods were pending
		{at(10).UnixMilli(), 0, 0, 0, 1}, // one pod is pending from here on
		{at(60).UnixMilli(), 1, 0, 0, 1},
	}
	if got := c.State(at(65)).History; !slices.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	if !slices.Equal(d.History, want[1:]) {
		t.Errorf("what is new: %v", d.History)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	c := model.New()
	see(c, noon, node("node-1", "z1"))
	for i := range 10_000 {
		now := noon.Add(time.Duration(i) * 20 * time.Second)
		see(c, now, pending(fmt.Sprint("w", i%3), "no"), unready(node("node-1", "z1")), node("node-1", "z1"))
		c.Changes(now)
	}
	history := c.State(noon).History
	if n := len(history); n != 2160 {
		t.Errorf("%d moments are kept", n)
	}
	if !slices.IsSortedFunc(history, func(a, b model.Moment) int { return int(a[0] - b[0]) }) {
		t.Error("not in their order")
	}
}

// TestTheStateSaysSinceWhenItKnowsWhatHappened verifies that the page shows the beginning of its
// history, since earlier events are unknown.
func TestTheStateSaysSinceWhenItKnowsWhatHappened(t *testing.T) {
	c := model.New()
	see(c, noon, node("node-1", "z1"))
	c.Changes(noon)
	c.Changes(noon.Add(time.Hour))
	if since := c.State(noon.Add(time.Hour)).Since; since != noon.UnixMilli() {
		t.Errorf("since %d, want %d", since, noon.UnixMilli())
	}
}
