// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// rolling returns a crowd in which a roll of nodes 1 to 4 is at node-2: the budget holds one of its
// pods, and the replacement of another is pending. Node-5 is being drained.
func rolling(t *testing.T) *stage.Crowd {
	c := deployed()
	begun := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	for i, state := range []execute.RollState{"done", "turn", "next", "next", ""} {
		c.SetNode(i, func(n *v1.Node) {
			n.Spec.Unschedulable = state != "done"
			note := execute.RollNote{Begun: begun, State: state}
			if state == "turn" {
				note.Next = "node-4"
			}
			text, err := json.Marshal(note)
			if err != nil {
				t.Fatal(err)
			}
			if state != "" {
				n.Annotations = map[string]string{execute.RollAnnotation: string(text)}
			}
		})
	}
	wait(c, 2, "the disruption budget cart-budget needs 3 healthy pods and has 3")
	leave(c, 5, 10*time.Minute, "EvictionByEvictionAPI") // of other-1, on node-2
	next := c.Pod(800, "")
	next.Name, next.OwnerReferences = "other-1-5d4f-next", c.Pods[5].OwnerReferences
	c.SetPod(len(c.Pods), next)
	leave(c, 8, 10*time.Minute, "EvictionByEvictionAPI") // of other-4, on node-5
	c.Other["deployments"].([]*appsv1.Deployment)[0].Labels = map[string]string{"berth.dev/surge": "note"}
	c.Other["leases"] = []*coordinationv1.Lease{{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berth-rebalance",
		Annotations: map[string]string{"berth.dev/room": `[{"namespace": "shop", "name": "cart-5d4f-2", "node": "node-1", "ahead": true}]`}}}}
	return c
}

// wait adds the event of a drain that waits for the i-th pod.
func wait(c *stage.Crowd, i int, why string) {
	p := c.Pods[i]
	c.Happen(&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: fmt.Sprintf("wait-%d", i), UID: p.UID + "-wait"}, Reason: "DrainWaiting", LastTimestamp: metav1.Now(),
		Source: v1.EventSource{Component: "berth-drain"}, Message: why,
		InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}})
}

// TestRollsAndDrainsShowWhatBlocksThem verifies that the evictions show the progress of a roll, its
// current and next node, the budget and the pending replacement that block it, surges, the room
// kept for a replacement, and a drain without a roll; and that the page of a node shows the same.
func TestRollsAndDrainsShowWhatBlocksThem(t *testing.T) {
	c := rolling(t)
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "#/evictions", desk)
	p.shows("#body .drains", "Roll: 1 of 4 nodes done")
	p.shows("#body .drains", "node-2 3 pods on it, 1 leaving")
	p.shows("#body .drains .blocks", "the disruption budget cart-budget needs 3 healthy pods and has 3")
	p.shows("#body .drains .blocks", "replacement of other-1-5d4f-5, pending: Insufficient cpu")
	p.shows("#body .drains .after", "Next node-4 and 1 node after it")
	p.wait("[...document.querySelectorAll('#body .drains .roll')].some((r) => /^Drain.*node-5/.test(r.textContent))")
	eval[bool](p, "(document.querySelector('#body .drains details').open = true)")
	p.shows("#body .drains", "shop/Deployment/cart has one more replica until a pod has left")
	p.shows("#body .drains", "Room is kept on node-1 for the replacement of shop/cart-5d4f-2, which starts first")
	pictures(t, ui.URL, "#/evictions", "5-drains", "document.querySelector('.drains .blocks')")
	eval[bool](p, "(location.hash = '#/node/node-2', true)")
	p.shows("#body .facts .blocks", "the disruption budget cart-budget needs 3 healthy pods and has 3")
	pictures(t, ui.URL, "#/node/node-2", "5-node", "document.querySelector('.facts .blocks')")
	// The roll ends: the node is uncordoned, and nothing is in progress any more.
	for i := range 5 {
		c.SetNode(i, func(n *v1.Node) { n.Spec.Unschedulable, n.Annotations = false, nil })
	}
	p.wait("!document.querySelector('#body .facts .blocks')")
	eval[bool](p, "(location.hash = '#/evictions', true)")
	p.wait("document.querySelector('#body .drains').hidden")
}
