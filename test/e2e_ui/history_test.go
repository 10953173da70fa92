// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
