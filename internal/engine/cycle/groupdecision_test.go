// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestADecisionTellsOfTheGroup verifies that the description of a pod includes the number of placed
// pods of its group, the group's requirement and the reason for its wait.
func TestADecisionTellsOfTheGroup(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
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

// TestAGangWhosePodsHaveAllGoneWaitsAsAWhole verifies that the condition of a gang without
// remaining pods still reports it as scheduled, but that the successors of its pods report the
// reason for their wait.
func TestAGangWhosePodsHaveAllGoneWaitsAsAWhole(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	member := func(name, node string) *v1.Pod {
		p := aPod(name, "1")
		p.Spec.NodeName, p.Spec.SchedulingGroup = node, &v1.PodSchedulingGroup{PodGroupName: new("g")}
		return p
	}
	g := gangOf("g", 2)
	g.Status.Conditions = []metav1.Condition{{Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled"}}
	events := []Event{Follows{}, Led{}, Seen{Nodes, aNode("n", "2")}, Seen{PodGroups, g}, Seen{Pods, member("a", "n")}, Seen{Pods, member("b", "n")}, Tick{}}
	for _, e := range append(events, Gone{Pods, member("a", "n")}, Gone{Pods, member("b", "n")},
		Seen{Nodes, aNode("n", "1")}, Seen{Pods, member("c", "")}, Seen{Pods, member("d", "")}, Tick{}) {
		for _, action := range core.Step(begin, e) {
			if a, ok := action.(WriteGroup); ok {
				t.Errorf("the condition is written again: %+v", a.Condition)
			}
		}
	}
	want := decision.Group{
		Name: "g", MinCount: 2, Members: 2, Tried: 2, Fit: 1, Needed: 2,
		Message: "1 of 2 pods fit, 2 are needed at once; default/d: 0/1 nodes are available: 1 Insufficient cpu.",
	}
	if g := core.Decision(cluster.Name{Namespace: "default", Name: "c"}).Group; *g != want {
		t.Errorf("%+v", *g)
	}
}

// TestAfterAnErrorNoPodIsSaidToFit verifies that no pod is reported as fitting after an error,
// because the pods were not examined.
func TestAfterAnErrorNoPodIsSaidToFit(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Topology: true}})
	if err != nil {
		t.Fatal(err)
	}
	g := gangOf("g", 3)
	g.Spec.SchedulingConstraints = oneOf("rack") // the node of pod a does not have this label
	for _, e := range []Event{Follows{}, Led{}, Seen{Nodes, aNode("n", "9")}, Seen{PodGroups, g}} {
		core.Step(begin, e)
	}
	for _, name := range []string{"a", "b", "c"} {
		p := aPod(name, "1")
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		if name == "a" {
			p.Spec.NodeName = "n"
		}
		core.Step(begin, Seen{Pods, p})
	}
	core.Step(begin, Tick{})
	if g := core.Decision(cluster.Name{Namespace: "default", Name: "b"}).Group; g.Tried != 2 || g.Fit != 0 || g.Message == "" {
		t.Errorf("%+v", *g)
	}
	if trial := core.TryGroup(cluster.Name{Namespace: "default", Name: "g"}); trial.Tried != 2 || trial.Fit != 0 || trial.Message == "" {
		t.Errorf("%+v", *trial)
	}
}

// TestAConditionThatIsNotShownYetIsTakenBack verifies that the condition is written again if the
// reason for a group's wait changes, and changes back before the API shows the first change.
func TestAConditionThatIsNotShownYetIsTakenBack(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	now, last := begin, (*groups.PodGroup)(nil)
	step := func(events ...Event) (text string) {
		for _, e := range events {
			for _, action := range core.Step(now, e) {
				if a, ok := action.(WriteGroup); ok {
					last = a.Group.DeepCopy()
					last.Status.Conditions = []metav1.Condition{a.Condition}
					text = a.Condition.Message
				}
			}
		}
		now = now.Add(time.Minute)
		return text
	}
	step(Follows{}, Led{}, Seen{Nodes, aNode("n", "1")}, Seen{PodGroups, gangOf("g", 3)})
	for _, name := range []string{"a", "b", "c"} {
		p := aPod(name, "1")
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		step(Seen{Pods, p})
	}
	first := step(Tick{})
	step(Seen{PodGroups, last})
	if text := step(Seen{Nodes, aNode("m", "1")}, Tick{}, Tick{}); text == "" || text == first {
		t.Fatalf("with another node it says %q", text)
	}
	if text := step(Gone{Nodes, aNode("m", "1")}, Seen{Nodes, aNode("n", "1500m")}, Tick{}, Tick{}); text != first {
		t.Errorf("without it, it says %q", text)
	}
}

// TestATrialOfATreeSaysWhoLeaves verifies that a trial for a group of a preempting tree reports the
// nodes of its pods and the victims of the tree, without any effect.
func TestATrialOfATreeSaysWhoLeaves(t *testing.T) {
	core, err := New(Options{
		Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Topology: true, Composite: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	low := aPod("low", "1")
	low.Spec.NodeName = "n"
	root := compositeOf("root", 2)
	root.Spec.Priority = new(int32(10))
	for _, e := range []Event{Follows{}, Led{}, Seen{Nodes, aNode("n", "2")}, Seen{Pods, low}, Seen{CompositePodGroups, root}} {
		core.Step(begin, e)
	}
	for _, name := range []string{"a", "b"} {
		g, p := gangOf(name, 1), aPod(name+"1", "1")
		g.Spec.ParentCompositePodGroupName, *p.Spec.Priority = &root.Name, 10
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &name}
		core.Step(begin, Seen{PodGroups, g})
		core.Step(begin, Seen{Pods, p})
	}

	for range 2 { // the second trial finds the state unchanged
		trial := core.TryGroup(cluster.Name{Namespace: "default", Name: "b"})
		if len(trial.Victims) != 1 || trial.Victims[0].Name != "low" || len(trial.Pods) != 1 || trial.Pods[0].Node != "n" {
			t.Errorf("%+v", trial)
		}
	}
	if on := core.View().Cluster.Pod(low.UID); on == nil || on.Preempted || core.View().Cluster.Nominated("a1") != nil {
		t.Errorf("a trial has left its traces: %+v", on)
	}
}
