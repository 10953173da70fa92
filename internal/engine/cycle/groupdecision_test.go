package cycle_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestADecisionTellsOfTheGroup: how many pods of how many have a node, what the group asks for and
// why it waits are part of what the scheduler tells of a pod.
func TestADecisionTellsOfTheGroup(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Gang: true}})
	if err != nil {
		t.Fatal(err)
	}
	member := func(name string) *v1.Pod {
		p := aPod(name, "1")
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		return p
	}
	step := func(events ...Event) *decision.Group {
		for _, e := range events {
			for _, action := range core.Step(begin, e) {
				if a, ok := action.(WriteGroup); ok {
					g := a.Group.DeepCopy()
					g.Status.Conditions = append(g.Status.Conditions, a.Condition)
					defer core.Step(begin, Seen{PodGroups, g})
				}
			}
		}
		return core.Decision(cluster.Name{Namespace: "default", Name: "a"}).Group
	}
	g := step(Follows{}, Led{}, Seen{Nodes, aNode("n", "1")}, Seen{Pods, member("a")}, Tick{})
	if want := (decision.Group{Name: "g", Missing: true, Members: 1}); *g != want {
		t.Errorf("without a PodGroup: %+v", *g)
	}
	g = step(Seen{PodGroups, gangOf("g", 2)}, Tick{})
	if want := (decision.Group{Name: "g", MinCount: 2, Members: 1}); *g != want {
		t.Errorf("without the second pod: %+v", *g)
	}
	step(Seen{Pods, member("b")}, Tick{})
	g = step()
	want := decision.Group{
		Name: "g", MinCount: 2, Members: 2, Tried: 2, Fit: 1, Needed: 2,
		Message: "1 of 2 pods fit, 2 are needed at once; default/b: 0/1 nodes are available: 1 Insufficient cpu.",
	}
	if *g != want {
		t.Errorf("without room: %+v", *g)
	}
	step(Seen{Nodes, aNode("m", "1")}, Tick{})
	core.Step(begin.Add(time.Minute), Tick{})
	if g := core.Decision(cluster.Name{Namespace: "default", Name: "a"}).Group; g.Placed != 2 || g.Bound != 0 {
		t.Errorf("on their way: %+v", *g)
	}
}
