// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// listens is an out-of-tree plugin that records the changes it receives.
type listens struct{ heard []string }

func (*listens) Name() string { return "Listens" }

func (l *listens) Admit(*v1.Pod) *plugins.Rejection {
	return &plugins.Rejection{Reasons: []string{"not yet"}}
}

func (l *listens) Interests() ([]queue.Interest, error) {
	var all []queue.Interest
	for _, r := range []queue.Resource{queue.Node, queue.PodGroup} {
		all = append(all, queue.Interest{Resource: r, Action: queue.All, Hint: func(_ *queue.Item, e *queue.Event) bool {
			version := func(o any) string {
				if object, ok := o.(metav1.Object); ok {
					return object.GetResourceVersion()
				}
				return ""
			}
			l.heard = append(l.heard, fmt.Sprintf("%s %q %q", e.Label, version(e.Old), version(e.New)))
			return false
		}})
	}
	return all, nil
}

func listening(l *listens) []Profile {
	d := plugins.Default()
	points := map[plugins.Point][]string{}
	for _, point := range plugins.AllPoints {
		points[point] = d.At[point]
	}
	points[plugins.PreEnqueue] = append([]string{l.Name()}, points[plugins.PreEnqueue]...)
	made, err := plugins.NewProfile(v1.DefaultSchedulerName, points, d.Weights, nil)
	if err != nil {
		panic(err)
	}
	return []Profile{{Profile: made, Extensions: []Extension{l}}}
}

func versionOf(version int) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n", ResourceVersion: fmt.Sprint(version), Annotations: map[string]string{"v": fmt.Sprint(version)}},
		Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("1")}},
	}
}

func heardBy(t *testing.T, l *listens, want ...string) {
	t.Helper()
	if got := fmt.Sprint(l.heard); got != fmt.Sprint(want) {
		t.Errorf("it heard %v, want %v", l.heard, want)
	}
	l.heard = nil
}

// TestAKeptStateDoesNotKeepItsList verifies that the array with the pods of a list is freed after
// most of the pods were deleted.
func TestAKeptStateDoesNotKeepItsList(t *testing.T) {
	core, err := New(Options{Profiles: listening(&listens{})})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(time.Time{}, Follows{Kinds: []Kind{Pods}})
	core.Step(time.Time{}, Listing{Pods})
	list := make([]v1.Pod, 1000)
	first := weak.Make(&list[0]) // a reference to any pod keeps the whole array
	list[1].Name, list[1].UID, list[1].Spec.SchedulerName = "p", "p", "of others"
	core.Step(time.Time{}, Seen{Pods, &list[1]})
	core.Step(time.Time{}, Listed{Pods})

	list = nil
	runtime.GC()
	if first.Value() != nil {
		t.Error("the list is kept")
	}
	if kept := core.mirrors[Pods].(*mirrored[*v1.Pod]).kept; len(kept) != 1 {
		t.Errorf("%d states are kept", len(kept))
	}
}

// TestStatesAreKeptWhileSomebodyWantsThem verifies that no states are kept after the out-of-tree
// plugins are removed from the configuration, and that plugins added again receive no old states.
func TestStatesAreKeptWhileSomebodyWantsThem(t *testing.T) {
	l, now := &listens{}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	core, err := New(Options{Profiles: listening(l)})
	if err != nil {
		t.Fatal(err)
	}
	waiting := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p", UID: "p"}, Spec: v1.PodSpec{
		SchedulerName: v1.DefaultSchedulerName, SchedulingGates: []v1.PodSchedulingGate{{Name: "g"}},
	}}
	step := func(e Event) { core.Step(now, e); core.Step(now, Tick{}) }
	kept := func() int { return len(core.mirrors[Nodes].(*mirrored[*v1.Node]).kept) }
	step(Follows{})
	step(Led{})
	step(Seen{Pods, waiting})
	step(Seen{Nodes, versionOf(1)})
	step(Seen{Nodes, versionOf(2)})
	heardBy(t, l, `NodeAdd "" "1"`, `NodeUpdate "1" "2"`)
	step(Configured{Profiles: []Profile{{Profile: plugins.Default()}}})
	if core.events.outOfTree || kept() != 0 {
		t.Errorf("listening for plugins that are gone: %t, %d states of nodes are kept", core.events.outOfTree, kept())
	}
	step(Seen{Nodes, versionOf(3)})
	step(Configured{Profiles: listening(l)})
	step(Seen{Nodes, versionOf(4)})
	step(Seen{Nodes, versionOf(5)})
	if kept() != 1 {
		t.Errorf("%d states of nodes are kept, want 1", kept())
	}
	heardBy(t, l, `NodeUpdate "" "4"`, `NodeUpdate "4" "5"`)
}

// TestPluginsHearOfPodGroups verifies that plugins can register for PodGroup events, as for every
// other kind.
func TestPluginsHearOfPodGroups(t *testing.T) {
	l, now := &listens{}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	core, err := New(Options{Profiles: listening(l), Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	step := func(e Event) { core.Step(now, e); core.Step(now, Tick{}) }
	group := func(uid types.UID, version string) *groups.PodGroup {
		return &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "g", UID: uid, ResourceVersion: version}}
	}
	step(Follows{})
	step(Led{})
	step(Seen{Pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p", UID: "p"}, Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName}}})
	for _, e := range []Event{
		Seen{PodGroups, group("a", "1")}, Seen{PodGroups, group("a", "2")}, Seen{PodGroups, group("a", "2")},
		Seen{PodGroups, group("b", "3")}, Gone{PodGroups, group("b", "3")},
	} {
		step(e)
	}
	heardBy(t, l, `scheduling.k8s.io/PodGroupAdd "" "1"`, `scheduling.k8s.io/PodGroupUpdate "1" "2"`,
		`scheduling.k8s.io/PodGroupDelete "2" ""`, `scheduling.k8s.io/PodGroupAdd "" "3"`, `scheduling.k8s.io/PodGroupDelete "3" ""`)
}
