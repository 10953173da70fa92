// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/world"
)

// TestAnnotationsProtectTheirOwnPod verifies that each annotation by which a user keeps a pod from
// being moved protects this pod, and no other one.
func TestAnnotationsProtectTheirOwnPod(t *testing.T) {
	policy, err := rebalance.ReadGoals([]string{"heal"}, "default")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		annotation, value string
		stays             bool
	}{
		{"berth.dev/rebalance", "never", true}, {"berth.dev/rebalance", "always", false},
		{"descheduler.alpha.kubernetes.io/evict", "false", true}, {"descheduler.alpha.kubernetes.io/evict", "true", false},
		{"descheduler.alpha.kubernetes.io/prefer-no-eviction", "", false}, // unless a policy makes it mandatory
		{"karpenter.sh/do-not-disrupt", "true", true}, {"karpenter.sh/do-not-disrupt", "no", false},
		{"cluster-autoscaler.kubernetes.io/safe-to-evict", "false", true}, {"cluster-autoscaler.kubernetes.io/safe-to-evict", "true", false},
	} {
		s := newStage(t, 1, "node a taint=old:NoSchedule\nnode b\npods x count=1 on=a\npods y count=1 on=a", policy)
		cluster := world.Open(nil)
		for _, o := range s.objects {
			if p, ok := o.(*v1.Pod); ok && p.Name == "x-0" {
				p.Annotations = map[string]string{c.annotation: c.value}
			}
			cluster.Put(o)
		}
		moved := map[string]bool{}
		plan := rebalance.Make(&rebalance.State{AsOf: s.Now, World: cluster}, policy, rebalance.Options{Profiles: s.profiles})
		for i := range plan.Moves {
			moved[plan.Moves[i].Name] = true
		}
		if moved["x-0"] == c.stays || !moved["y-0"] {
			t.Errorf("%s=%q on x-0: moved are %v", c.annotation, c.value, moved)
		}
	}
}
