// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestEveryDomainGetsItsTurnWhereOneTakesTheWholeAttempt verifies that the last domain is found,
// with or without preemption, although each domain takes the whole time of an attempt. All pods of
// the gang differ, and only the last domain has the disk.
func TestEveryDomainGetsItsTurnWhereOneTakesTheWholeAttempt(t *testing.T) {
	const racks, members, most = 8, 6, 20
	for _, full := range []bool{false, true} {
		core, err := New(Options{
			Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Topology: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		core.attempts.limits.Work = most
		core.Step(churnBegins, Follows{})
		core.Step(churnBegins, Led{})
		for i := range racks {
			n := churnNode(fmt.Sprint("n", i), "16")
			n.Labels["rack"] = fmt.Sprint("r", i)
			if i == racks-1 {
				n.Labels["disk"] = "ssd"
			}
			core.Step(churnBegins, Seen{Nodes, n})
			if full {
				p := churnPod(fmt.Sprint("there-", i), "16")
				p.Spec.NodeName = n.Name
				core.Step(churnBegins, Seen{Pods, p})
			}
		}
		g := &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g", UID: "g"}}
		g.Spec.SchedulingPolicy.Gang, g.Spec.Priority = &schedulingv1beta1.GangSchedulingPolicy{MinCount: members}, new(int32(10))
		g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: "rack"}}}
		core.Step(churnBegins, Seen{PodGroups, g})
		for i := range members {
			p := churnPod(fmt.Sprint("m", i), fmt.Sprintf("%dm", 100+i))
			p.Spec.NodeSelector, p.Spec.Priority = map[string]string{"disk": "ssd"}, new(int32(10))
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
			core.Step(churnBegins, Seen{Pods, p})
		}
		bound, removed, longest := 0, 0, 0
		for second := 0; second < 3600 && bound+removed == 0; second++ {
			before := core.profiles.byName[v1.DefaultSchedulerName].Work()
			for _, action := range core.Step(churnBegins.Add(time.Duration(second)*time.Second), Tick{}) {
				switch action.(type) {
				case Bind:
					bound++
				case Remove:
					removed++
				}
			}
			longest = max(longest, core.profiles.byName[v1.DefaultSchedulerName].Work()-before)
		}
		if full && removed != 1 || !full && bound != members {
			t.Errorf("full %t: %d are bound, %d leave", full, bound, removed)
		}
		if most := most << gang.MostDoublings * 4; longest > most {
			t.Errorf("full %t: an attempt took %d judgements, want no more than %d", full, longest, most)
		}
	}
}
