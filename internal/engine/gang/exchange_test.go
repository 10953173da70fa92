// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestVictimsMakeRoomForMostMembers verifies that as few pods as possible leave for members that
// differ only in labels. On four of ten nodes, memory limits the members, so the third victim makes
// room for three members, and for four elsewhere. If the pods elsewhere have a higher priority, no
// more of them leave in exchange.
func TestVictimsMakeRoomForMostMembers(t *testing.T) {
	for elsewhere, want := range map[int32]map[int32]int{0: {0: 20}, 5: {0: 12, 5: 9}} {
		c := cluster.New()
		sized := func(name, cpu, memory string, priority int32) *v1.Pod {
			p := newPod(name, cpu, priority)
			p.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse(memory)
			return p
		}
		for i := range 10 {
			n := c.SetNode(newNode(fmt.Sprint("n", i), "32"))
			c.Place(c.Pending(sized(fmt.Sprint("high", i), fmt.Sprint(2+i%3*2), "8Gi", 100)), n)
			for j := range 3 {
				low := sized(fmt.Sprintf("low-%d-%d", i, j), "8", "200Mi", min(elsewhere, int32(i%3*5)))
				c.Place(c.Pending(low), n)
			}
		}
		a := newAttempt(c, 100, func(i int) *v1.Pod {
			p := sized(fmt.Sprint("m", i), "2", "4Gi", 10)
			p.Labels = map[string]string{"app": fmt.Sprint(i % 3)}
			return p
		})

		before, plan := describeCluster(c), a.PlanRoom()
		if plan == nil {
			t.Fatal("there is no plan")
		}
		checkPlan(t, 0, a, plan)
		checkUnchanged(t, 0, "PlanRoom", before, c)
		leave := map[int32]int{}
		for _, unit := range plan.Victims {
			leave[unit[0].Class.Priority]++
		}
		if !maps.Equal(leave, want) {
			t.Errorf("victims by priority: %v, want %v", leave, want)
		}
	}
}
