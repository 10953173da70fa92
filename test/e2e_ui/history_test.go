// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

// TestTheHistoryListsPodsThatLeft verifies that the history lists an evicted and a preempted pod
// with reason, initiator, node, duration and replacement, also in a dashboard that started later,
// and that a click on the timeline lists that moment.
func TestTheHistoryListsPodsThatLeft(t *testing.T) {
	c := deployed()
	c.Happen(&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e", UID: "e"}, Reason: "Preempted", LastTimestamp: metav1.NewTime(time.Now().Add(-10 * time.Minute)),
		Source:         v1.EventSource{Component: "default-scheduler"},
		InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "cart-5d4f-early", UID: "early"}, Message: "Preempted by pod uid-x on node node-5"})
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "#/history", desk)
	p.shows("#body .rows", "cart-5d4f-early")
	p.shows("#body .rows", "preempted by default-scheduler")
	p.shows("#body .rows", "from node-5")
	leave(c, 0, 30*time.Second, "EvictionByEvictionAPI")
	p.shows(`#body .row[data-at="0"]`, "cart-5d4f-0evicted")
	p.shows(`#body .row[data-at="0"]`, "leaving")
	next := c.Pod(700, "node-4")
	next.Namespace, next.Name, next.OwnerReferences = "shop", "cart-5d4f-next", c.Pods[0].OwnerReferences
	c.SetPod(len(c.Pods), next)
	p.wait("[...document.querySelectorAll('#body .row')].some((r) => /cart-5d4f-next.*on node-4/.test(r.textContent))")
	p.shows("#strip", "1 eviction, 0 preemptions")
	// A moment without departures is empty; the last moment has one.
	eval[bool](p, "((s) => { s.cursor = s.store.now() - 300e3; s.reach = 0; s.listed(); return true; })(document.querySelector('#strip').strip)")
	p.wait("document.querySelector('#body .list').dataset.rows === '0'")
	eval[bool](p, "(location.hash = '#/queue', true)")
	eval[bool](p, "((s) => { s.cursor = s.store.now(); s.box.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); return true; })(document.querySelector('#strip').strip)")
	p.wait("location.hash === '#/history' && document.querySelector('#body .list').dataset.rows === '1'")
	p.click("#body .reasons button")
	p.wait("document.querySelector('#body .list').dataset.rows === '2'")
	pictures(t, ui.URL, "#/history", "3-history", "document.querySelector('#body .list').dataset.rows === '2'")
	// After a restart, the departures are known from events and terminating pods.
	p.Forgive() // connections fail
	ui.Kill()
	later := open(t, ofCrowd(t, c).URL, "#/history", desk)
	later.shows("#body .rows", "cart-5d4f-early")
	later.shows("#body .rows", "cart-5d4f-0")
}

// TestTheHistoryIsRestoredFromAJournal verifies that a dashboard lists departures, with
// replacements, that happened before its start and that no event records, if it reads the journal
// of the scheduler; and that the timeline counts them.
func TestTheHistoryIsRestoredFromAJournal(t *testing.T) {
	c, dir, began := deployed(), t.TempDir(), time.Now().Add(-2*time.Hour).Truncate(10*time.Second)
	w, err := journal.Create(dir, journal.Header{Build: "test", Began: began}, records.Limits{Size: 1 << 20}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	gone := c.Pods[0].DeepCopy()
	gone.Name, gone.UID, gone.CreationTimestamp = "cart-5d4f-past", "past", metav1.NewTime(began)
	w.Add(began, cycle.Seen{Kind: cycle.Pods, Object: gone.DeepCopy()}, nil)
	gone.DeletionTimestamp, gone.DeletionGracePeriodSeconds = new(metav1.NewTime(began.Add(100*time.Second))), new(int64(40))
	gone.Status.Conditions = append(gone.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "EvictionByEvictionAPI"})
	w.Add(began.Add(time.Minute), cycle.Seen{Kind: cycle.Pods, Object: gone.DeepCopy()}, nil)
	next := c.Pods[1].DeepCopy()
	next.Name, next.UID, next.CreationTimestamp, next.Spec.NodeName = "cart-5d4f-then", "then", metav1.NewTime(began.Add(time.Minute)), ""
	w.Add(began.Add(61*time.Second), cycle.Seen{Kind: cycle.Pods, Object: next.DeepCopy()}, nil)
	next.Spec.NodeName = "node-6"
	w.Add(began.Add(90*time.Second), cycle.Seen{Kind: cycle.Pods, Object: next.DeepCopy()}, nil)
	w.Add(began.Add(95*time.Second), cycle.Gone{Kind: cycle.Pods, Object: gone}, nil)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ui := ofCrowd(t, c, "--port", "0", "--journal", dir)
	for range 2 { // before and after a restart
		p := open(t, ui.URL, "#/history", desk)
		p.shows(`#body .row[data-at="0"]`, "shop/cart-5d4f-past")
		p.shows(`#body .row[data-at="0"]`, "evicted")
		p.shows(`#body .row[data-at="0"]`, "from node-1")
		p.shows(`#body .row[data-at="0"]`, "cart-5d4f-then")
		p.shows(`#body .row[data-at="0"]`, "on node-6 after 30 s")
		p.shows(`#body .row[data-at="0"]`, "in 35 s")
		eval[bool](p, "((s) => { s.span = 21600e3; s.plan(); return true; })(document.querySelector('#strip').strip)")
		p.shows("#strip", "1 eviction, 0 preemptions")
		p.Forgive()
		ui.Kill()
		ui = ofCrowd(t, c, "--port", "0", "--journal", dir)
	}
}
