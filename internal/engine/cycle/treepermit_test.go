// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// refuses is an out-of-tree plugin that refuses labeled pods at Permit.
type refuses struct{}

func (refuses) Name() string { return "Refuses" }

func (refuses) Permit(a *Attempt) (*plugins.Rejection, time.Duration) {
	if a.Pod.Labels["refused"] != "" {
		return &plugins.Rejection{Reasons: []string{"no"}}, 0
	}
	return nil, 0
}

// TestATreeThatIsRefusedBacksOff verifies that a tree backs off if a plugin at Permit refuses one
// of its groups, another group fits nowhere, and no pod is started. Otherwise, immediate retries
// would repeat forever. If some pods of the tree are started, the group without room is retried
// immediately.
func TestATreeThatIsRefusedBacksOff(t *testing.T) {
	for _, third := range []bool{false, true} { // whether a third group is started
		core, err := New(Options{
			Profiles: []Profile{profileWith(at{refuses{}, []plugins.Point{plugins.Permit}})},
			Groups:   groups.Gates{Generic: true, Topology: true, Composite: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		core.Step(begin, Led{})
		core.Step(begin, Seen{Nodes, aNode("n", "2")})
		core.Step(begin, Seen{CompositePodGroups, compositeOf("c", 0)})
		for name, cpu := range map[string]string{"refused": "1", "large": "4", "well": "1"} {
			if name == "well" && !third {
				continue
			}
			g := gangOf(name, 1)
			g.Spec.ParentCompositePodGroupName = new("c")
			core.Step(begin, Seen{PodGroups, g})
			p := aPod(name, cpu)
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &g.Name}
			if name == "refused" {
				p.Labels = map[string]string{"refused": "yes"}
			}
			core.Step(begin, Seen{Pods, p})
		}

		turns := 0
		for ; !core.Wake(begin).After(begin) && turns < 100; turns++ {
			core.Step(begin, Tick{})
		}
		if turns == 100 {
			t.Errorf("a group that goes on %t: the tree is tried again and again without a pause", third)
		}
		if q := core.View().Queue; q.Get(aPod("refused", "1").UID) == nil || q.Get(aPod("large", "1").UID) == nil {
			t.Errorf("a group that goes on %t: pods are in no queue", third)
		}
	}
}
