// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/config"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAnotherCoreKeepsRoomAndBudgets verifies that the next core receives decisions of the previous
// core that the API does not show yet: the node held for a preemptor, and the allowance used by its
// victim.
func TestAnotherCoreKeepsRoomAndBudgets(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	start := func(objects ...Seen) *Core {
		profile := plugins.Default()
		profile.KeepBudgets = true
		core, err := New(Options{Profiles: []Profile{{Profile: profile}}})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(now, Follows{})
		for _, o := range objects {
			core.Step(now, o)
		}
		core.Step(now, Led{})
		return core
	}
	pod := func(name, node string, priority int32) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "a"}},
			Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, NodeName: node, Priority: &priority, Containers: []v1.Container{{
				Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}},
			}}},
		}
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("2"), v1.ResourcePods: resource.MustParse("10"),
	}}}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1},
	}
	high := pod("high", "", 10)
	high.Labels = nil
	objects := []Seen{{Nodes, node}, {DisruptionBudgets, budget}, {Pods, pod("x", "n", 0)}, {Pods, pod("y", "n", 0)}, {Pods, high}}
	one := start(objects...)
	var victim *v1.Pod
	for _, action := range one.Step(now, Tick{}) {
		if a, ok := action.(Remove); ok {
			victim = pod(a.Victim.Name, "n", 0)
			one.Step(now, Answered{Ticket: a.Ticket})
		}
	}
	if victim == nil {
		t.Fatal("nobody is preempted")
	}
	deleted := metav1.NewTime(now)
	victim.DeletionTimestamp = &deleted
	one.Step(now, Seen{Pods, victim})
	if !one.Calm() {
		t.Fatalf("under way: %+v", one.Books())
	}
	saved := one.Save()
	other := start(append(objects, Seen{Pods, victim})...)
	other.Step(now, saved)
	if p := other.View().Cluster.Nominated("high"); p == nil || p.Nominated != "n" {
		t.Errorf("room is kept for %+v", p)
	}
	if b, ok := other.View().Cluster.Budgets.Get("d", "b"); !ok || b.Status.DisruptionsAllowed != 0 {
		t.Errorf("the budget allows %+v", b)
	}
	if item := other.View().Queue.Get("high"); item == nil || item.Attempts != 1 {
		t.Errorf("the preemptor: %+v", item)
	}
}

// TestAnotherCoreFlushesWhenItIsTime verifies that the change of cores does not cause an earlier
// flush.
func TestAnotherCoreFlushesWhenItIsTime(t *testing.T) {
	start := func() *Core {
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		core.Step(begin, Led{})
		return core
	}
	one, other, later := start(), start(), begin.Add(10*time.Second)
	one.Step(begin, Tick{})
	other.Step(later, one.Save())
	other.Step(later, Tick{})
	if want, got := one.Wake(later), other.Wake(later); !got.Equal(want) {
		t.Errorf("the next flush is after %v, want %v", got.Sub(begin), want.Sub(begin))
	}
}

// TestAnotherCoreKeepsTheRoomOfASuccessor verifies that the next core holds the room for exactly as
// long as the first core would have held it. The cores are exchanged even if the Lease cannot be
// listed.
func TestAnotherCoreKeepsTheRoomOfASuccessor(t *testing.T) {
	text, err := json.Marshal([]MoveReservation{{Namespace: "default", Name: "web", UID: "uid-web", Owner: "uid-owner", Node: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: MoveLeaseNamespace, Name: MoveLeaseName, UID: "uid-room", Annotations: map[string]string{MoveReservationAnnotation: string(text)},
	}}
	start := func(now time.Time) *Core {
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
		if err != nil {
			t.Fatal(err)
		}
		web := aPod("web", "1")
		web.UID, web.Spec.NodeName = "uid-web", "a"
		for _, e := range []Event{
			Follows{}, Seen{Nodes, aNode("a", "1")}, Seen{Nodes, aNode("b", "1")}, Seen{Pods, web}, Listing{MoveLeases}, Seen{MoveLeases, lease}, Led{}, Tick{},
		} {
			core.Step(now, e)
		}
		return core
	}
	keeps := func(c *Core) bool { return c.View().Cluster.Nominated("uid-web/room") != nil }
	const leaves = 2 * time.Minute
	for after, kept := range map[time.Duration]bool{leaves / 2: true, leaves: false} {
		one, now := start(begin), begin.Add(after)
		one.Step(now, Tick{})
		if keeps(one) != kept {
			t.Fatalf("after %s, the first core keeps the room: %t", after, !kept)
		}
		if !one.Calm() {
			t.Errorf("under way: %+v", one.Books())
		}
		other := start(now)
		other.Step(now, one.Save())
		if other.Step(now, Tick{}); keeps(other) != kept {
			t.Errorf("after %s, the next core keeps the room: %t", after, !kept)
		}
		if other.Step(begin.Add(leaves), Tick{}); keeps(other) {
			t.Errorf("the next core keeps the room for longer than %s", leaves)
		}
	}
}

// TestAnotherCoreKeepsWhatWasLearnt verifies that learnt data about past pods is kept after most of
// them were deleted, and survives encoding as JSON in the journal. A profile that considers other
// devices starts without learnt data.
func TestAnotherCoreKeepsWhatWasLearnt(t *testing.T) {
	const configuration = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: Fragmentation}]}}
  pluginConfig: [{name: Fragmentation, args: {resource: example.com/gpu, unit: %d}}]
`
	start := func(unit int) *Core {
		parsed, err := config.Parse("profile", fmt.Appendf(nil, configuration, unit), config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		core, err := New(Options{Profiles: []Profile{{Profile: parsed.Profiles[0]}}})
		if err != nil {
			t.Fatal(err)
		}
		node := aNode("a", "100")
		node.Status.Allocatable["example.com/gpu"] = resource.MustParse("8000")
		for _, e := range []Event{Follows{}, Seen{Nodes, node}, Led{}, Tick{}} {
			core.Step(begin, e)
		}
		return core
	}

	one := start(1000)
	for i := range 40 {
		pod := aPod(fmt.Sprint("p", i), "1")
		pod.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse([]string{"470", "810"}[i%2])
		one.Step(begin, Seen{Pods, pod})
		for _, action := range one.Step(begin, Tick{}) {
			if bind, ok := action.(Bind); ok {
				one.Step(begin, Answered{Ticket: bind.Ticket})
			}
		}
		one.Step(begin, Gone{Pods, pod})
	}
	if !one.Calm() {
		t.Fatalf("under way: %+v", one.Books())
	}
	written, err := json.Marshal(one.Save())
	if err != nil {
		t.Fatal(err)
	}

	for unit, want := range map[int]bool{1000: true, 2000: false} {
		var saved Resumed
		if err := json.Unmarshal(written, &saved); err != nil {
			t.Fatal(err)
		}
		other := start(unit)
		other.Step(begin, saved)
		kept := other.Save().Learnt[v1.DefaultSchedulerName]
		if (kept != nil) != want || want && !reflect.DeepEqual(kept, saved.Learnt[v1.DefaultSchedulerName]) {
			t.Errorf("with %d a device it has learnt %+v; the first one had %+v", unit, kept, saved.Learnt)
		}
		if want && (len(kept.Shapes) != 2 || kept.Seen != 40) {
			t.Errorf("%d pods of %d kinds came, want 40 of 2: %+v", kept.Seen, len(kept.Shapes), kept)
		}
	}
}

// TestReservationsOfEarlierVersions verifies that the single reservation in a state saved by an
// earlier version is kept, and that several reservations survive a change of the core.
func TestReservationsOfEarlierVersions(t *testing.T) {
	for text, want := range map[string]int{
		`{"Reserved": {"Group": "g", "Nodes": {"p": "n"}}}`:                                    1,
		`{"Held": [{"Group": "g", "Nodes": {"p": "n"}}, {"Group": "h", "Nodes": {"q": "n"}}]}`: 2,
	} {
		var saved Resumed
		if err := json.Unmarshal([]byte(text), &saved); err != nil {
			t.Fatal(err)
		}
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(time.Time{}, saved)
		held := core.View().Reserved
		if len(held) != want || held[0].Group != "g" || held[0].Nodes["p"] != "n" {
			t.Errorf("%s: %+v", text, held)
		}
	}
}
