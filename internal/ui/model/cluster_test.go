// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/ui/model"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func node(name, zone string, taints ...v1.Taint) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{v1.LabelTopologyZone: zone}},
		Spec:       v1.NodeSpec{Taints: taints},
		Status: v1.NodeStatus{
			Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("16Gi"), v1.ResourcePods: resource.MustParse("110")},
			Conditions:  []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}, {Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse}},
		},
	}
}

func noExecute(since time.Time) v1.Taint {
	added := metav1.NewTime(since)
	return v1.Taint{Key: "maintenance", Value: "now", Effect: v1.TaintEffectNoExecute, TimeAdded: &added}
}

func pod(name, on string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(noon)},
		Spec: v1.PodSpec{
			NodeName: on, SchedulerName: "default-scheduler",
			Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m"), v1.ResourceMemory: resource.MustParse("1Gi")}}}},
			Overhead:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning},
	}
}

func tolerating(p *v1.Pod, seconds int64) *v1.Pod {
	p.Spec.Tolerations = []v1.Toleration{{Key: "maintenance", Operator: v1.TolerationOpExists, TolerationSeconds: &seconds}}
	return p
}

func pending(name, message string) *v1.Pod {
	p := pod(name, "")
	p.Status.Phase = v1.PodPending
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, Message: message}}
	return p
}

// see passes nodes and pods to the cluster.
func see(c *model.Cluster, at time.Time, objects ...any) {
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			c.NodeSeen(at, model.NodeOf(o))
		case *v1.Pod:
			c.PodSeen(at, model.PodOf(o))
		}
	}
}

func TestANodeIsAsFullAsItsPodsWithTheirOverhead(t *testing.T) {
	c := model.New()
	ended := pod("ended", "node-1")
	ended.Status.Phase = v1.PodSucceeded
	see(c, noon, pod("early", "node-1"), node("node-1", "z1"), pod("a", "node-1"), ended, pending("waits", "no room"))
	d := c.Changes(noon)
	want := model.Node{
		Name: "node-1", Zone: "z1", Ready: "True", Taints: []string{}, Trouble: []string{},
		CPU: [2]int64{3500, 8000}, Memory: [2]int64{2 << 30, 16 << 30}, Pods: [2]int64{2, 110},
		Blocks: []model.Block{{Namespace: "default", Name: "a", CPU: 1750, Memory: 1 << 30}, {Namespace: "default", Name: "early", CPU: 1750, Memory: 1 << 30}},
	}
	if len(d.Nodes.Rows) != 1 || !reflect.DeepEqual(d.Nodes.Rows[0], want) {
		t.Errorf("%+v\nwant %+v", d.Nodes.Rows, want)
	}
	if s := d.Summary; s.Nodes != 1 || s.Ready != 1 || s.Pods != 2 || s.Pending != 1 || s.CPU != want.CPU {
		t.Errorf("summary %+v", s)
	}
	if len(d.Queue.Rows) != 1 || d.Queue.Rows[0].Message != "no room" || d.Queue.Rows[0].Reason != v1.PodReasonUnschedulable {
		t.Errorf("queue %+v", d.Queue.Rows)
	}
}

func TestOnlyWhatDiffersIsTold(t *testing.T) {
	c := model.New()
	see(c, noon, node("node-1", "z1"), node("node-2", "z1"), pod("a", "node-1"), pending("waits", "no room"))
	c.Changes(noon)
	see(c, noon, node("node-1", "z1"), pod("a", "node-1"), pending("waits", "no room"))
	if d := c.Changes(noon); d != nil {
		t.Errorf("the same again: %+v", d)
	}
	bound := pod("waits", "node-2")
	see(c, noon, bound)
	d := c.Changes(noon)
	if d == nil || d.Nodes == nil || len(d.Nodes.Rows) != 1 || d.Nodes.Rows[0].Name != "node-2" || d.Queue == nil || !slices.Equal(d.Queue.Gone, []string{"uid-waits"}) {
		t.Errorf("bound: %+v", d)
	}
}

func TestATaintStartsACountdownAndItsEndStopsIt(t *testing.T) {
	c := model.New()
	see(c, noon, node("node-1", "z1"), tolerating(pod("stays-a-while", "node-1"), 90), pod("goes-at-once", "node-1"), pod("elsewhere", "node-2"))
	c.Changes(noon)
	see(c, noon, node("node-1", "z1", noExecute(noon)))
	d := c.Changes(noon)
	due := map[string]time.Duration{}
	for _, row := range d.Evictions.Rows {
		due[row.Name] = time.UnixMilli(row.Due).Sub(noon)
	}
	if want := map[string]time.Duration{"stays-a-while": 90 * time.Second, "goes-at-once": 0}; !maps.Equal(due, want) {
		t.Errorf("due %v, want %v", due, want)
	}
	if row := d.Nodes.Rows[0]; row.Leaving != 2 || !slices.Equal(row.Taints, []string{"maintenance=now:NoExecute"}) {
		t.Errorf("node %+v", row)
	}
	if len(d.Events) != 1 || d.Events[0].Reason != "TaintAdded" || d.Events[0].Name != "node-1" {
		t.Errorf("events %+v", d.Events)
	}
	see(c, noon.Add(time.Second), node("node-1", "z1"))
	if d := c.Changes(noon); len(d.Evictions.Gone) != 2 || d.Nodes.Rows[0].Leaving != 0 || d.Summary.Leaving != 0 {
		t.Errorf("after the taint: %+v", d)
	}
}

func TestAHeldEvictionCountsDownToTheDeadline(t *testing.T) {
	c := model.New()
	held := pod("held", "node-1")
	held.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true)}}
	held.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	held.Annotations = map[string]string{
		"berth.dev/eviction-requested": noon.Format(time.RFC3339), "berth.dev/eviction-status": "held: starting a replacement on node-2",
	}
	see(c, noon, node("node-1", "z1"), held)
	d := c.Changes(noon)
	if len(d.Evictions.Rows) != 1 || d.Evictions.Rows[0].Held != "starting a replacement on node-2" ||
		d.Evictions.Rows[0].Due != noon.Add(10*time.Minute).UnixMilli() {
		t.Fatalf("%+v", d.Evictions)
	}
	admitted := held.DeepCopy()
	admitted.Annotations["berth.dev/eviction-status"] = "admitted: cannot surge"
	see(c, noon, admitted)
	if d := c.Changes(noon); len(d.Evictions.Gone) != 1 {
		t.Errorf("after the admission: %+v", d.Evictions)
	}
}

func TestAPodThatWasToldToGoIsShownUntilItIsGone(t *testing.T) {
	c := model.New()
	going := pod("going", "node-1")
	ends := metav1.NewTime(noon.Add(30 * time.Second))
	going.DeletionTimestamp = &ends
	going.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "DeletionByTaintManager"}}
	see(c, noon, node("node-1", "z1"), going)
	d := c.Changes(noon)
	if len(d.Evictions.Rows) != 1 || !d.Evictions.Rows[0].Going || d.Evictions.Rows[0].Due != ends.UnixMilli() || d.Evictions.Rows[0].Cause != "DeletionByTaintManager" {
		t.Errorf("%+v", d.Evictions)
	}
	c.PodGone(noon, going.UID)
	if d := c.Changes(noon); len(d.Evictions.Gone) != 1 || d.Nodes.Rows[0].Pods[0] != 0 || d.Nodes.Rows[0].Leaving != 0 {
		t.Errorf("%+v", d)
	}
}

func TestAPodUnderTheSameNameIsAnother(t *testing.T) {
	c := model.New()
	first, second := pending("p", "first"), pending("p", "second")
	second.UID = "another"
	see(c, noon, first)
	c.Changes(noon)
	see(c, noon, second)
	d := c.Changes(noon)
	if !slices.Equal(d.Queue.Gone, []string{string(first.UID)}) || len(d.Queue.Rows) != 1 || d.Queue.Rows[0].Message != "second" {
		t.Errorf("%+v", d.Queue)
	}
	c.PodGone(noon, first.UID) // the deletion may be observed late
	if d := c.Changes(noon); d != nil {
		t.Errorf("%+v", d)
	}
}

func TestWhatAListDoesNotShowIsGone(t *testing.T) {
	c := model.New()
	see(c, noon, node("node-1", "z1"), node("node-2", "z2"), pod("a", "node-1"), pending("b", ""))
	c.NodesListed(noon)
	c.Changes(noon)
	c.NodesListing(noon)
	c.PodsListing(noon)
	see(c, noon, node("node-2", "z2"))
	c.PodsListed(noon)
	c.NodesListed(noon)
	d := c.Changes(noon)
	if !slices.Equal(d.Nodes.Gone, []string{"node-1"}) || !slices.Equal(d.Queue.Gone, []string{"uid-b"}) || d.Summary.Pods != 0 || d.Summary.Nodes != 1 {
		t.Errorf("%+v", d)
	}
}

func TestTheDetailsOfANode(t *testing.T) {
	c := model.New()
	gpu := pod("gpu", "node-1")
	gpu.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("2")
	n := node("node-1", "z1", noExecute(noon))
	n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("8")
	see(c, noon, n, gpu, tolerating(pod("web", "node-1"), 60))
	d, ok := c.Node("node-1")
	if !ok || len(d.PodList) != 2 || d.PodList[0].Name != "gpu" || d.PodList[1].Due != noon.Add(time.Minute).UnixMilli() || d.PodList[0].OverheadCPU != 250 {
		t.Fatalf("%+v", d)
	}
	got := map[string]string{}
	for _, r := range d.Resources {
		got[r.Name] = r.Requested + " (" + r.Overhead + ") of " + r.Allocatable
	}
	want := map[string]string{"cpu": "3500m (500m) of 8", "memory": "2Gi () of 16Gi", "pods": "2 () of 110", "nvidia.com/gpu": "2 () of 8"}
	if !maps.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	if _, ok := c.Node("node-9"); ok {
		t.Error("there is no node-9")
	}
}

func TestFindingByAPartOfTheName(t *testing.T) {
	c := model.New()
	see(c, noon, node("web-node", "z1"), pod("web-1", "web-node"), pod("my-web", "web-node"), pod("other", "web-node"))
	found := c.Find("WEB", 10)
	nodes, pods := found.Nodes, found.Pods
	if !slices.Equal(nodes, []string{"web-node"}) || len(pods) != 2 || pods[0].Name != "web-1" || pods[1].Name != "my-web" {
		t.Errorf("%v, %+v", nodes, pods)
	}
	if pods := c.Find("default/o", 10).Pods; len(pods) != 1 || pods[0].Name != "other" {
		t.Errorf("%+v", pods)
	}
}

// TestTextsOfEventsAreCut verifies that long texts are cut: the API server accepts events with a
// message of a megabyte.
func TestTextsOfEventsAreCut(t *testing.T) {
	long := strings.Repeat("ä", 600_000)
	e := model.EventOf(&v1.Event{Reason: long, Message: long, InvolvedObject: v1.ObjectReference{Kind: long, Namespace: long, Name: long}})
	for _, text := range []string{e.Reason, e.Kind, e.Namespace, e.Name, e.Message} {
		if len(text) > 1024+len("…") || !strings.HasPrefix(text, "ää") || !utf8.ValidString(text) {
			t.Errorf("%d bytes are kept", len(text))
		}
	}
	if short := model.EventOf(&v1.Event{Message: "it is as it is"}); short.Message != "it is as it is" {
		t.Errorf("%q", short.Message)
	}
}

func TestEventsKeepTheLastByTime(t *testing.T) {
	c := model.New()
	for i := range 2000 {
		c.EventSeen(model.EventOf(&v1.Event{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}, LastTimestamp: metav1.NewTime(noon.Add(time.Duration(i*7919%2000) * time.Second))}))
	}
	d := c.Changes(noon)
	if len(d.Events) != 300 || d.Events[299].At != noon.Add(1999*time.Second).UnixMilli() {
		t.Errorf("%d events, the last of %s", len(d.Events), time.UnixMilli(d.Events[len(d.Events)-1].At))
	}
}

// TestALateEventIsShown verifies that a late event is shown with its own time, between events shown
// earlier, which are not sent again.
func TestALateEventIsShown(t *testing.T) {
	c := model.New()
	see := func(uid string, at time.Duration) {
		c.EventSeen(model.EventOf(&v1.Event{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, LastTimestamp: metav1.NewTime(noon.Add(at))}))
	}
	for i := range 300 {
		see(fmt.Sprint(i), time.Duration(i)*time.Minute)
	}
	c.Changes(noon)

	see("late", 100*time.Minute+time.Second)
	if got := c.State(noon).Events; len(got) != 300 || got[299].UID != "299" {
		t.Errorf("before it is shown, %d events, the last is %s", len(got), got[len(got)-1].UID)
	}
	if d := c.Changes(noon); d == nil || len(d.Events) != 1 || d.Events[0].UID != "late" {
		t.Errorf("shown: %+v", d)
	}
	if got := c.State(noon).Events; len(got) != 300 || !slices.ContainsFunc(got, func(e model.Event) bool { return e.UID == "late" }) {
		t.Errorf("after it was shown, %d events", len(got))
	}

	// An event older than all kept events is dropped.
	see("too late", -time.Minute)
	if d := c.Changes(noon); d != nil && len(d.Events) > 0 {
		t.Errorf("shown: %+v", d.Events)
	}
}

// TestARepeatedEventIsShownOnce verifies that a repeated event has one row with its last count: the
// page has one row per UID.
func TestARepeatedEventIsShownOnce(t *testing.T) {
	c := model.New()
	see := func(uid string, count int32) {
		c.EventSeen(model.EventOf(&v1.Event{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Count: count, LastTimestamp: metav1.NewTime(noon.Add(time.Duration(count) * time.Second))}))
	}
	see("others", 1)
	see("repeated", 1)
	see("repeated", 2)
	if got := c.Changes(noon).Events; len(got) != 2 || got[1].Count != 2 {
		t.Errorf("changes: %+v", got)
	}
	see("repeated", 3)
	c.Changes(noon)
	if got := c.State(noon).Events; len(got) != 2 || got[1].Count != 3 {
		t.Errorf("state: %+v", got)
	}
	for i := range 2000 { // repeated events must not displace others
		see("repeated", int32(i+4))
	}
	c.Changes(noon)
	if got := c.State(noon).Events; len(got) != 2 || got[1].Count != 2003 {
		t.Errorf("after many: %d", len(got))
	}
}

// TestChangesAddUpToTheState verifies for random histories that applying all changes, split in any
// way, results in the same state as reading the state at the end, and as observing only the final
// objects.
func TestChangesAddUpToTheState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := model.New()
		follower := newFollower()
		nodes, pods := map[string]*v1.Node{}, map[string]*v1.Pod{}
		uids := 0
		names := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				n := node(names.Draw(t, "node"), rapid.SampledFrom([]string{"z1", "z2"}).Draw(t, "zone"))
				if rapid.Bool().Draw(t, "tainted") {
					n.Spec.Taints = []v1.Taint{noExecute(noon)}
				}
				nodes[n.Name] = n
				see(c, noon, n)
			case 1:
				name := names.Draw(t, "node")
				delete(nodes, name)
				c.NodeGone(noon, name)
			case 2, 3:
				p := pod(names.Draw(t, "pod"), rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "on"))
				if old := pods[p.Name]; old != nil {
					p.UID = old.UID
					p.Spec.NodeName = cmp.Or(old.Spec.NodeName, p.Spec.NodeName) // a pod does not move
				} else {
					uids++
					p.UID = types.UID(fmt.Sprint(uids))
				}
				if rapid.Bool().Draw(t, "tolerates") {
					tolerating(p, rapid.Int64Range(1, 99).Draw(t, "seconds"))
				}
				pods[p.Name] = p
				see(c, noon, p)
			case 4:
				name := names.Draw(t, "pod")
				if p := pods[name]; p != nil {
					c.PodGone(noon, p.UID)
				}
				delete(pods, name)
			case 5:
				follower.take(c.Changes(noon))
			}
		}
		follower.take(c.Changes(noon))
		follower.take(c.Changes(noon)) // the first call may have changed the counts of nodes
		late := newFollower()
		late.take(c.State(noon))
		fresh := model.New()
		for _, n := range nodes {
			see(fresh, noon, n)
		}
		for _, p := range pods {
			see(fresh, noon, p)
		}
		fresh.Changes(noon)
		fresh.Changes(noon)
		end := newFollower()
		end.take(fresh.State(noon))
		if a, b, x := follower.text(), late.text(), end.text(); a != b || b != x {
			t.Fatalf("followed: %s\nat once:  %s\nthe end:  %s", a, b, x)
		}
	})
}

// follower applies changes as the web page does.
type follower struct {
	nodes     map[string]model.Node
	queue     map[string]model.Waiting
	evictions map[string]model.Leaving
	summary   model.Summary
}

func newFollower() *follower {
	return &follower{map[string]model.Node{}, map[string]model.Waiting{}, map[string]model.Leaving{}, model.Summary{}}
}

func (f *follower) take(d *model.Delta) {
	if d == nil {
		return
	}
	f.summary = d.Summary
	f.summary.Marked = 0 // a counter of changes, not part of the state
	merge(f.nodes, d.Nodes, func(n model.Node) string { return n.Name })
	merge(f.queue, d.Queue, func(w model.Waiting) string { return w.UID })
	merge(f.evictions, d.Evictions, func(l model.Leaving) string { return l.UID })
}

func merge[T any](into map[string]T, set *model.Set[T], key func(T) string) {
	if set == nil {
		return
	}
	for _, row := range set.Rows {
		into[key(row)] = row
	}
	for _, name := range set.Gone {
		delete(into, name)
	}
}

func (f *follower) text() string {
	text, _ := json.Marshal([]any{f.nodes, f.queue, f.evictions, f.summary})
	return string(text)
}
