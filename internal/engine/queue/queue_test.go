// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

var epoch = time.Unix(1_700_000_000, 0)

var class = &cluster.PodClass{}

func pod(name string, priority int32) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       v1.PodSpec{Priority: &priority, SchedulerName: "s"},
	}
}

// newQueue returns a queue with the interests of six plugins. Nodes is helped by new or relabelled
// nodes, Pods by deleted pods, Own by the pod's own new labels, and Named by a new node whose event
// carries the pod's name. No event helps Never. Gate is the plugin of a gate, which new claims may
// open.
func newQueue() *Queue {
	q := New()
	q.SetInterests("s", Interests{
		"Nodes": {{Resource: Node, Action: Add | UpdateNodeLabel}},
		"Pods":  {{Resource: Pod, Action: Delete}},
		"Own":   {{Resource: Pod, Action: UpdatePodLabel, Hint: func(item *Item, e *Event) bool { return e.Own == item }}},
		"Never": {{Resource: Node, Action: All, Hint: func(*Item, *Event) bool { return false }}},
		"Named": {{Resource: Node, Action: Add, PerPod: true, Hint: func(item *Item, e *Event) bool { return item.Pod.Name == e.New.(string) }}},
		"Gate":  {{Resource: Claim, Action: Add}},
	})
	return q
}

var (
	podGone   = &Event{Resource: Pod, Action: Delete, Label: "AssignedPodDelete"}
	labelled  = &Event{Resource: Node, Action: UpdateNodeLabel, Label: "NodeUpdate"}
	tainted   = &Event{Resource: Node, Action: UpdateNodeTaint, Label: "NodeUpdate"}
	claimCame = &Event{Resource: Claim, Action: Add, Label: "PersistentVolumeClaimAdd"}
)

func pop(t *testing.T, q *Queue, now time.Time, want string) *Item {
	t.Helper()
	item := q.Pop(now)
	got := "nothing"
	if item != nil {
		got = item.Pod.Name
	}
	if got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	return item
}

func TestPriorityThenAge(t *testing.T) {
	q := newQueue()
	q.Add(pod("young", 0), class, epoch.Add(time.Second))
	q.Add(pod("old", 0), class, epoch)
	q.Add(pod("as old", 0), class, epoch)
	q.Add(pod("important", 5), class, epoch.Add(2*time.Second))
	for _, want := range []string{"important", "old", "as old", "young", "nothing"} {
		pop(t, q, epoch.Add(3*time.Second), want)
	}
}

func TestOrderFromOutside(t *testing.T) {
	q := newQueue()
	q.Add(pod("b", 5), class, epoch)
	q.Add(pod("a", 0), class, epoch)
	q.OrderBy(func(a, b *Item) bool { return a.Pod.Name < b.Pod.Name })
	pop(t, q, epoch, "a")
	q.OrderBy(nil)
	pop(t, q, epoch, "b")
}

func TestRejectedPodWaitsForWhatCanHelp(t *testing.T) {
	q, later := newQueue(), epoch.Add(time.Minute)
	q.Add(pod("p", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"Nodes", "Never"}, nil, epoch)
	for _, e := range []*Event{podGone, tainted} {
		q.Happened(e, later)
		pop(t, q, later, "nothing")
	}
	q.Happened(labelled, later)
	pop(t, q, later, "p")
}

func TestPluginThatSaysNothingIsHelpedByAnything(t *testing.T) {
	q, later := newQueue(), epoch.Add(time.Minute)
	q.Add(pod("p", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"Never", "Unheard"}, nil, epoch)
	q.Happened(tainted, later)
	pop(t, q, later, "p")
}

func TestHintForOnePodOfAGroup(t *testing.T) {
	q, later := newQueue(), epoch.Add(time.Minute)
	for _, name := range []string{"a", "b", "c"} {
		q.Add(pod(name, 0), class, epoch)
		q.Rejected(pop(t, q, epoch, name), []string{"Named"}, nil, epoch)
	}
	q.Happened(&Event{Resource: Node, Action: Add, New: "b"}, later)
	pop(t, q, later, "b")
	pop(t, q, later, "nothing")
}

// TestWholeGroupIsAskedOnce verifies that an event costs as much for a thousand pending pods of a
// class as for one pod.
func TestWholeGroupIsAskedOnce(t *testing.T) {
	q, asked := New(), 0
	q.SetInterests("s", Interests{"X": {{Resource: Node, Action: Add, Hint: func(*Item, *Event) bool { asked++; return false }}}})
	for i := range 1000 {
		q.Add(pod(fmt.Sprint(i), 0), class, epoch)
		q.Rejected(q.Pop(epoch), []string{"X"}, nil, epoch)
	}
	q.Happened(&Event{Resource: Node, Action: Add}, epoch)
	if asked != 1 || q.Len(Waiting) != 1000 {
		t.Errorf("asked %d times, %d wait", asked, q.Len(Waiting))
	}
}

func TestBackoffGrowsToTenSeconds(t *testing.T) {
	q, now := newQueue(), epoch
	q.Add(pod("p", 0), class, now)
	for _, seconds := range []int{1, 2, 4, 8, 10, 10} {
		item := pop(t, q, now, "p")
		q.Rejected(item, []string{"Pods"}, nil, now)
		q.Happened(podGone, now)
		if item.Place() != Backoff {
			t.Fatalf("woken during its back-off, the pod is %s", item.Place())
		}
		now = now.Add(time.Duration(seconds) * time.Second)
		if !item.Ready().Equal(now) {
			t.Fatalf("it backs off until %v, want %v", item.Ready(), now)
		}
	}
	pop(t, q, now, "p")
}

// TestBackoffGrowsToAnyLimit verifies that doubling works for arbitrarily large initial and maximum
// back-offs.
func TestBackoffGrowsToAnyLimit(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, c := range []struct {
		first, last time.Duration
		times       int
		want        time.Duration
	}{
		{3 * time.Hour, 5 * time.Hour, 1, 3 * time.Hour},
		{3 * time.Hour, 5 * time.Hour, 21, 5 * time.Hour},
		{3 * time.Hour, 24 * time.Hour, 3, 12 * time.Hour},
		{time.Second, year, 24, 1 << 23 * time.Second},
		{time.Second, year, 26, year},
		{time.Second, year, 1 << 20, year},
		{time.Hour, math.MaxInt64, 1 << 20, math.MaxInt64},
	} {
		q := newQueue()
		q.FirstBackoff, q.LastBackoff = c.first, c.last
		if got := q.backoffFor(&Item{}, c.times); got != c.want {
			t.Errorf("from %v to %v, after %d times: %v, want %v", c.first, c.last, c.times, got, c.want)
		}
	}
}

// TestIdleQueueTakesRejectedPods verifies that back-off delays rejected pods only while other pods
// are active, whereas pods with failed attempts are never tried during their back-off.
func TestIdleQueueTakesRejectedPods(t *testing.T) {
	q, now := newQueue(), epoch
	q.Add(pod("rejected", 0), class, now)
	q.Rejected(pop(t, q, now, "rejected"), []string{"Pods"}, nil, now)
	q.Add(pod("failed", 10), class, now)
	q.Failed(pop(t, q, now, "failed"), now)
	q.Happened(podGone, now)
	q.Add(pod("new", 0), class, now)
	pop(t, q, now, "new")
	if at, ok := q.NextReady(); !ok || at.After(now) {
		t.Errorf("a pod can be taken at %v, %t; want at once", at, ok)
	}
	pop(t, q, now, "rejected")
	pop(t, q, now, "nothing")
	if at, ok := q.NextReady(); !ok || !at.Equal(now.Add(time.Second)) {
		t.Errorf("a pod can be taken at %v, %t; want after a second", at, ok)
	}
	pop(t, q, now.Add(time.Second), "failed")
}

// TestPodsThatKeepFailingQueueBehindNewOnes verifies that repeatedly failing pods are ordered after
// new pods of the same priority, so that new pods get their first attempt.
func TestPodsThatKeepFailingQueueBehindNewOnes(t *testing.T) {
	q, now := newQueue(), epoch
	q.Add(pod("old", 0), class, now)
	q.Failed(pop(t, q, now, "old"), now.Add(time.Second))
	q.Add(pod("new", 0), class, now.Add(500*time.Millisecond))
	now = now.Add(time.Minute)
	pop(t, q, now, "new")
	pop(t, q, now, "old")
}

// TestErrorsBackOffByThemselves verifies that an often rejected pod backs off for one second after
// an API server error, not for ten seconds.
func TestErrorsBackOffByThemselves(t *testing.T) {
	q, now := newQueue(), epoch
	q.Add(pod("p", 0), class, now)
	for range 5 {
		q.Rejected(pop(t, q, now, "p"), []string{"Pods"}, nil, now)
		now = now.Add(time.Minute)
		q.Happened(podGone, now)
	}
	for _, seconds := range []int{1, 2} {
		q.Failed(pop(t, q, now, "p"), now)
		pop(t, q, now.Add(time.Duration(seconds)*time.Second-time.Millisecond), "nothing")
		now = now.Add(time.Duration(seconds) * time.Second)
	}
	q.Rejected(pop(t, q, now, "p"), []string{"Pods"}, nil, now)
	now = now.Add(time.Minute)
	q.Happened(podGone, now)
	q.Failed(pop(t, q, now, "p"), now)
	pop(t, q, now.Add(time.Second), "p")
}

func TestPodRemovedWhileItIsDecidedDoesNotComeBack(t *testing.T) {
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	item := pop(t, q, epoch, "p")
	q.Remove("p")
	q.Failed(item, epoch)
	q.Rejected(item, []string{"Nodes"}, nil, epoch)
	pop(t, q, epoch.Add(time.Hour), "nothing")
}

// TestEventDuringADecisionIsNotLost verifies that a helpful event during a decision counts if the
// pod is rejected. If the pod was held at Permit, only events after the call of Held count.
func TestEventDuringADecisionIsNotLost(t *testing.T) {
	for _, c := range []struct {
		event *Event
		want  Place
	}{{podGone, Backoff}, {tainted, Waiting}, {labelled, Waiting}} {
		q := newQueue()
		q.Add(pod("p", 0), class, epoch)
		q.Happened(podGone, epoch) // before the pod was taken, so the decision accounts for it
		item := pop(t, q, epoch, "p")
		q.Happened(c.event, epoch)
		q.Rejected(item, []string{"Pods"}, nil, epoch)
		if item.Place() != c.want {
			t.Errorf("after %s %v: %s, want %s", c.event.Label, c.event.Action, item.Place(), c.want)
		}
	}
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	item := pop(t, q, epoch, "p")
	q.Happened(podGone, epoch)
	q.Held(item)
	q.Rejected(item, []string{"Pods"}, nil, epoch)
	if item.Place() != Waiting {
		t.Errorf("what happened before it was held was decided on: %s", item.Place())
	}
}

// TestHintsAreAskedAboutWhatCameMeanwhile verifies that an event during a pod's attempt wakes the
// pod only if a hint approves.
func TestHintsAreAskedAboutWhatCameMeanwhile(t *testing.T) {
	for _, c := range []struct {
		plugin string
		helps  string // name of the pod helped by the event
		more   int    // number of later events
		want   Place
	}{
		{"Named", "p", 0, Backoff},
		{"Named", "other", 0, Waiting},
		{"Never", "p", 0, Waiting},
		{"Named", "p", mostRecent / 4, Backoff},
		{"Named", "p", 2 * mostRecent, Backoff},
		{"Named", "other", 2 * mostRecent, Backoff}, // the event was dropped, so the pod is retried without a hint
	} {
		q := newQueue()
		q.Add(pod("p", 0), class, epoch)
		item := pop(t, q, epoch, "p")
		q.Happened(&Event{Resource: Node, Action: Add, New: c.helps}, epoch)
		for range c.more {
			q.Happened(podGone, epoch)
		}
		q.Rejected(item, []string{c.plugin}, nil, epoch)
		if item.Place() != c.want {
			t.Errorf("%s, asked about %s and %d more: %s, want %s", c.plugin, c.helps, c.more, item.Place(), c.want)
		}
		if n := len(q.happened.recent); n > mostRecent {
			t.Errorf("%d events are kept", n)
		}
	}
}

// TestEventsOfLargePodsAreForgotten verifies that the events kept for running attempts are also
// limited in size. If events of an attempt were dropped, the pod is retried.
func TestEventsOfLargePodsAreForgotten(t *testing.T) {
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	item := pop(t, q, epoch, "p")
	q.Happened(&Event{Resource: Node, Action: Add, New: "other"}, epoch)
	for range 200 {
		q.Happened(&Event{Resource: Pod, Action: Delete, PodBefore: cluster.NewPod(&cluster.PodClass{Bulk: 1 << 20}, "", "")}, epoch)
	}
	kept := 0
	for i := range q.happened.recent {
		kept += q.happened.recent[i].bulkOf()
	}
	if kept > cluster.MostBulk || kept == 0 || kept != q.happened.bulk {
		t.Errorf("events about pods of %d bytes are kept, and %d counted", kept, q.happened.bulk)
	}
	if q.Rejected(item, []string{"Named"}, nil, epoch); item.Place() != Backoff {
		t.Errorf("the pod is %s", item.Place())
	}
	q.Happened(podGone, epoch) // no attempt is running
	if n, bulk := len(q.happened.recent), q.happened.bulk; n+bulk > 0 {
		t.Errorf("%d events of %d bytes are kept", n, bulk)
	}
}

// TestEventsOfLargeCustomResourcesAreForgotten verifies that the limit includes custom resources,
// which do not report their size.
func TestEventsOfLargeCustomResourcesAreForgotten(t *testing.T) {
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	pop(t, q, epoch, "p")
	large := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"list": []any{strings.Repeat("x", 1<<20), map[string]any{strings.Repeat("y", 1<<20): nil}}},
	}}
	for range 200 {
		q.Happened(&Event{Resource: "foos.v1.example.com", Action: Update, Old: (*unstructured.Unstructured)(nil), New: large}, epoch)
	}
	if n := len(q.happened.recent); n == 0 || n > cluster.MostBulk>>21 {
		t.Errorf("%d events about 2 MiB each are kept", n)
	}
}

// TestOrderFollowsUpdatesDuringBackoff verifies that an order by mutable fields of pods also
// applies to pods in back-off.
func TestOrderFollowsUpdatesDuringBackoff(t *testing.T) {
	q := newQueue()
	q.OrderBy(func(a, b *Item) bool { return a.Pod.Annotations["order"] < b.Pod.Annotations["order"] })
	ordered := func(name, order string) *v1.Pod {
		p := pod(name, 0)
		p.Annotations = map[string]string{"order": order}
		return p
	}
	names := []string{"a", "b", "c", "d", "e"}
	for i, name := range names {
		q.Add(ordered(name, fmt.Sprint(i)), class, epoch)
	}
	for _, name := range names {
		q.Rejected(pop(t, q, epoch, name), []string{"Pods"}, nil, epoch)
	}
	q.Happened(podGone, epoch)
	q.Update(q.Get("e"), ordered("e", "-"), class, 0, epoch)
	for _, name := range []string{"e", "a", "b", "c", "d"} {
		pop(t, q, epoch, name)
	}
}

// TestEveryResourceIsAKindOfItsOwn verifies that no resource counts as unknown. Events of unknown
// resources are compared with every group, and wake pods after long attempts.
func TestEveryResourceIsAKindOfItsOwn(t *testing.T) {
	for _, r := range []Resource{
		Pod, Node, Volume, Claim, CSINode, CSIDriver, VolumeAttachment, CSIStorageCapacity, StorageClass, ResourceClaim, ResourceSlice,
		DeviceClass, Namespace, Budget, Owner, PodGroup,
	} {
		if kinds[kindOf(r)] != r {
			t.Errorf("%s counts as %s", r, kinds[kindOf(r)])
		}
	}
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	item := pop(t, q, epoch, "p")
	q.Happened(&Event{Resource: PodGroup, Action: Update}, epoch)
	for range 2 * mostRecent {
		q.Happened(&Event{Resource: Budget, Action: Update}, epoch)
	}
	if q.Rejected(item, []string{"Nodes"}, nil, epoch); item.Place() != Waiting {
		t.Errorf("a PodGroup changed, and a pod that waits for nodes is %s", item.Place())
	}
}

// TestOwnChangeMeanwhile verifies that a pod changed during its attempt keeps its new class, and is
// retried if the change can help.
func TestOwnChangeMeanwhile(t *testing.T) {
	for plugin, want := range map[string]Place{"Own": Backoff, "Nodes": Waiting} {
		q, changed := newQueue(), &cluster.PodClass{}
		q.Add(pod("other", 0), class, epoch)
		other := pop(t, q, epoch, "other")
		q.Add(pod("p", 0), class, epoch)
		item := pop(t, q, epoch, "p")
		q.Update(item, pod("p", 0), changed, UpdatePodLabel, epoch)
		q.Rejected(item, []string{plugin}, nil, epoch)
		q.Rejected(other, []string{"Own"}, nil, epoch)
		if item.Place() != want || item.Class != changed || other.Place() != Waiting {
			t.Errorf("%s: %s, want %s; the other one: %s", plugin, item.Place(), want, other.Place())
		}
		if err := q.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestNobodyHelpsAgainstNobody verifies that no event wakes a pod whose only rejector has an empty
// name, and that any event wakes a pod rejected without rejectors.
func TestNobodyHelpsAgainstNobody(t *testing.T) {
	q, later := newQueue(), epoch.Add(time.Minute)
	q.Add(pod("p", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{""}, nil, epoch)
	q.Add(pod("q", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "q"), nil, nil, epoch) // a rejection without rejectors
	q.Happened(podGone, later)
	pop(t, q, later, "q")
	pop(t, q, later, "nothing")
	q.Activate("p", later)
	pop(t, q, later, "p")
}

func TestOwnChange(t *testing.T) {
	q, later := newQueue(), epoch.Add(time.Minute)
	item := q.Add(pod("p", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"Own"}, nil, epoch)
	q.Update(item, pod("p", 0), &cluster.PodClass{}, UpdatePodToleration, later)
	q.Update(item, pod("p", 0), item.Class, Update, later) // an update without a specific action matches only interests in all updates
	pop(t, q, later, "nothing")
	q.Update(item, pod("p", 0), item.Class, UpdatePodLabel, later)
	pop(t, q, later, "p")
}

func TestGate(t *testing.T) {
	q, closed := newQueue(), true
	q.Admit = func(*Item) string {
		if closed {
			return "Gate"
		}
		return ""
	}
	item := q.Add(pod("p", 0), class, epoch)
	q.Happened(podGone, epoch)
	q.Happened(claimCame, epoch)
	q.Flush(epoch.Add(time.Hour))
	if item.Place() != Gated || item.Gate != "Gate" || item.Attempts != 0 {
		t.Fatalf("%s by %q", item.Place(), item.Gate)
	}
	closed = false
	q.Happened(podGone, epoch) // not an event of the gate
	if item.Place() != Gated {
		t.Fatalf("%s", item.Place())
	}
	q.Happened(claimCame, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"Pods"}, nil, epoch)
	closed = true
	q.Happened(podGone, epoch.Add(time.Minute))
	if item.Place() != Gated {
		t.Fatalf("the gate has closed again, and yet it is %s", item.Place())
	}
	closed = false
	q.Update(item, pod("p", 0), class, UpdatePodLabel, epoch.Add(time.Minute)) // the gate did not register changes of pods
	pop(t, q, epoch.Add(time.Minute), "nothing")
	q.SetInterests("s", Interests{"Gate": {{Resource: Pod, Action: UpdatePodLabel}}})
	q.Update(item, pod("p", 0), class, UpdatePodLabel, epoch.Add(time.Minute))
	pop(t, q, epoch.Add(time.Minute), "p")
}

// TestAPluginThatRejectsAndGatesIsCountedOnce verifies that a pod first rejected and later gated by
// the same plugin is counted once for that plugin.
func TestAPluginThatRejectsAndGatesIsCountedOnce(t *testing.T) {
	q, closed, counts := newQueue(), false, map[string]int{}
	q.Counted = func(plugin, _ string, delta int) { counts[plugin] += delta }
	q.Admit = func(*Item) string {
		if closed {
			return "Gate"
		}
		return ""
	}
	item := q.Add(pod("p", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"Gate", "Nodes"}, nil, epoch)
	closed = true
	q.Happened(claimCame, epoch.Add(time.Minute))
	if want := map[string]int{"Gate": 1, "Nodes": 1}; item.Place() != Gated || !maps.Equal(counts, want) {
		t.Errorf("%s, counted %v, want %v", item.Place(), counts, want)
	}
}

func TestNewInterestsHoldForThoseThatWait(t *testing.T) {
	q, later := newQueue(), epoch.Add(time.Minute)
	q.Add(pod("p", 0), class, epoch)
	q.Rejected(pop(t, q, epoch, "p"), []string{"Pods"}, nil, epoch)
	q.SetInterests("s", Interests{"Pods": {{Resource: Node, Action: UpdateNodeTaint}}})
	q.Happened(podGone, later)
	pop(t, q, later, "nothing")
	q.Happened(tainted, later)
	pop(t, q, later, "p")
}

func TestActivateEndsTheBackoff(t *testing.T) {
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	q.Failed(pop(t, q, epoch, "p"), epoch)
	q.Activate("p", epoch)
	pop(t, q, epoch, "p")
}

// TestActivatedDuringItsAttempt verifies that a pod activated while it is decided, or while it
// waits at Permit, is retried after its back-off if it is rejected. Other pods keep waiting.
func TestActivatedDuringItsAttempt(t *testing.T) {
	q := newQueue()
	q.Add(pod("p", 0), class, epoch)
	q.Add(pod("other", 0), class, epoch)
	p, other := pop(t, q, epoch, "p"), pop(t, q, epoch, "other")
	q.Held(p)
	q.Activate("p", epoch)
	q.Rejected(p, []string{"Nodes"}, []string{"Nodes"}, epoch)
	q.Rejected(other, []string{"Nodes"}, nil, epoch)
	if p.Place() != Backoff || other.Place() != Waiting {
		t.Errorf("they are %s and %s", p.Place(), other.Place())
	}
	q.Rejected(pop(t, q, epoch, "p"), []string{"Nodes"}, nil, epoch) // the pod was activated before this attempt
	pop(t, q, epoch.Add(time.Minute), "nothing")
}

// TestNoPodIsForgotten verifies that after any sequence of events every pod is in exactly one
// place, and that all pods are eventually popped.
func TestNoPodIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, now, out, closed := newQueue(), epoch, map[types.UID]*Item{}, map[string]bool{}
		kept := map[string]int{}
		q.Grouped = true
		q.Counted = func(plugin, _ string, delta int) { kept[plugin] += delta }
		q.Admit = func(i *Item) string {
			if closed[i.Pod.Name] {
				return "Gate"
			}
			return ""
		}
		known := map[types.UID]bool{}
		name := func(t *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "pod")) }
		classes := []*cluster.PodClass{{}, {}}
		some := func(t *rapid.T) *Item {
			for _, item := range out {
				delete(out, item.Pod.UID)
				return item
			}
			t.Skip("none is taken")
			return nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				p, c := pod(name(t), int32(rapid.IntRange(0, 2).Draw(t, "priority"))), rapid.SampledFrom(classes).Draw(t, "class")
				if p.Name < "4" { // names 0 to 3 form two groups of two pods
					p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new(fmt.Sprint("g", p.Name[0]/2))}
				}
				if item := q.Get(p.UID); item != nil {
					q.Update(item, p, c, Action(rapid.Int64Range(0, int64(All)).Draw(t, "changes")), now)
				} else {
					q.Add(p, c, now)
				}
				known[p.UID] = true
			},
			"remove": func(t *rapid.T) {
				uid := types.UID(name(t))
				q.Remove(uid)
				delete(known, uid)
				delete(out, uid)
			},
			"pop": func(t *rapid.T) {
				if item := q.Pop(now); item != nil {
					out[item.Pod.UID] = item
				}
			},
			"reject": func(t *rapid.T) {
				by := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"Nodes", "Pods", "Named", "Never", "other"}), rapid.ID).Draw(t, "by")
				q.Rejected(some(t), by, by[:rapid.IntRange(0, len(by)).Draw(t, "pending")], now)
			},
			"fail": func(t *rapid.T) { q.Failed(some(t), now) },
			"gate": func(t *rapid.T) { n := name(t); closed[n] = !closed[n] },
			"happen": func(t *rapid.T) {
				e := *rapid.SampledFrom([]*Event{podGone, labelled, tainted, claimCame, {Resource: Node, Action: Add}}).Draw(t, "event")
				e.New = name(t)
				q.Happened(&e, now)
			},
			"interests": func(t *rapid.T) { q.SetInterests("s", q.interests["s"]) },
			"activate":  func(t *rapid.T) { q.Activate(types.UID(name(t)), now) },
			"flush":     func(*rapid.T) { q.Flush(now) },
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				if err := q.Check(); err != nil {
					t.Fatal(err)
				}
			},
		})
		clear(closed)
		now = now.Add(2 * MaxWait)
		q.Happened(claimCame, now)
		q.Flush(now)
		now = now.Add(MaxBackoff)
		for item := q.Pop(now); item != nil; item = q.Pop(now) {
			out[item.Pod.UID] = item
		}
		for uid := range known {
			if out[uid] == nil {
				t.Fatalf("pod %s was forgotten: %+v", uid, q.Get(uid))
			}
		}
		for plugin, n := range kept {
			if n != 0 {
				t.Fatalf("%d pods are still counted as kept by %s", n, plugin)
			}
		}
	})
}

// TestBackoffCanBeWaitedOut verifies that without SchedulerPopFromBackoffQ an idle queue keeps
// rejected pods, like failed pods, until the end of their back-off, and orders them by that end.
func TestBackoffCanBeWaitedOut(t *testing.T) {
	for _, waits := range []bool{false, true} {
		q := newQueue()
		q.WaitOutBackoff = waits
		q.Add(pod("early", 0), class, epoch)
		q.Rejected(pop(t, q, epoch, "early"), []string{"Nodes"}, nil, epoch)
		later := epoch.Add(300 * time.Millisecond)
		q.Add(pod("late", 5), class, later)
		q.Rejected(pop(t, q, later, "late"), []string{"Nodes"}, nil, later)
		q.Happened(labelled, later)
		if !waits {
			pop(t, q, later, "late") // both back-offs end in the same one-second window, so priority decides
			continue
		}
		pop(t, q, later, "nothing")
		if at, ok := q.NextReady(); !ok || !at.Equal(epoch.Add(InitialBackoff)) {
			t.Errorf("the next pod is ready at %v, %t", at, ok)
		}
		pop(t, q, epoch.Add(InitialBackoff-1), "nothing")
		pop(t, q, epoch.Add(InitialBackoff), "early")
		pop(t, q, epoch.Add(InitialBackoff), "nothing")
		q.Add(pod("fails", 0), class, later)
		q.Failed(pop(t, q, later, "fails"), later.Add(-time.Millisecond))
		if at, _ := q.NextReady(); !at.Equal(later.Add(InitialBackoff - time.Millisecond)) {
			t.Errorf("a failed pod is ready before the rejected one, and the next is ready at %v", at)
		}
		pop(t, q, later.Add(InitialBackoff), "late") // both pods are active by then
	}
}

// TestAPodThatIsRejectedOverAndOverRests verifies that an idle queue retries a rejected pod before
// the end of its back-off, but limits the rate of retries of a pod that an event wakes after every
// attempt.
func TestAPodThatIsRejectedOverAndOverRests(t *testing.T) {
	q, now, taken := newQueue(), epoch, 0
	q.Add(pod("a", 0), class, now)
	for now.Before(epoch.Add(time.Second)) {
		item := q.Pop(now)
		if item == nil {
			at, ok := q.NextReady()
			if !ok || !at.After(now) {
				t.Fatalf("after %v the next pod is ready at %v, %t, and there is none", now.Sub(epoch), at, ok)
			}
			now = at
			continue
		}
		taken++
		now = now.Add(10 * time.Microsecond)
		q.Rejected(item, []string{"Nodes"}, nil, now)
		q.Happened(labelled, now)
	}
	if taken < 50 || taken > 120 {
		t.Errorf("it was taken %d times within a second", taken)
	}
}
