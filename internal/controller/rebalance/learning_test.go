// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/world"
)

// TestPlansTeachNothing verifies that the predicted pods are learned only from running pods. The
// successors in a plan must not count, because a plan tries many moves and undoes most of them.
func TestPlansTeachNothing(t *testing.T) {
	text, _, _ := strings.Cut(fragmentation, "      tasks:")
	parsed, err := config.Parse("test", []byte(text), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &rebalance.State{AsOf: begin, World: world.Open(nil)}
	for _, line := range []string{
		"node n1 gpu=8", "node n2 gpu=8", "pod a on=n1 gpu=2 age=1m", "pod b on=n2 gpu=5 age=1m", "pod full on=n1 gpu=1 age=1m",
	} {
		put(s, object(t, line)...)
	}
	plan := rebalance.Make(s, &rebalance.Policy{Goals: []rebalance.Goal{*rebalance.OwnGoal("consolidate", 1)}},
		rebalance.Options{Profiles: parsed.Profiles})
	if len(plan.Moves) == 0 {
		t.Fatalf("nothing is moved: %s", show(plan))
	}

	learnt := parsed.Profile(v1.DefaultSchedulerName).Learnt()
	if learnt == nil || learnt.Seen != 0 || len(learnt.Shapes) != 3 {
		t.Fatalf("learnt is %+v, want the three kinds of pods that run", learnt)
	}
	for _, shape := range learnt.Shapes {
		if shape.Weight != learnt.Shapes[0].Weight {
			t.Errorf("%+v counts otherwise than %+v", shape, learnt.Shapes[0])
		}
	}
}
