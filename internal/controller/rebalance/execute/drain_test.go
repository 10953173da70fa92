// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/response"
)

// TestAPodThatLeavesLateTakesNoAnswerFromAnother verifies that both pods count as evicted if the
// first one terminates after an EvictionRequest while the second one's eviction is in flight.
func TestAPodThatLeavesLateTakesNoAnswerFromAnother(t *testing.T) {
	first, second := podOf("shop", "web-1", "web"), podOf("shop", "web-2", "web")
	plan := &rebalance.Draining{}
	for _, p := range []*v1.Pod{first, second} {
		p.Spec.NodeName = "a"
		plan.Pods = append(plan.Pods, rebalance.Departure{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, Owner: "ReplicaSet/web", From: "a", To: "b",
		})
	}
	d, now := NewDrainer(DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a"}}}), time.Unix(1, 0)
	evicted := 0
	step := func(event Event) (asked response.Ticket) {
		t.Helper()
		for _, action := range d.Step(now, event) {
			switch a := action.(type) {
			case Evict:
				asked = a.Ticket
			case DrainProgress:
				if a.Result == Evicted {
					evicted++
				}
			}
		}
		return asked
	}

	step(Seen{Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1.NodeSpec{Unschedulable: true}}})
	step(Seen{Object: first})
	step(Seen{Object: second})
	step(Listed{})
	step(DrainPlanned{Plan: plan})
	ticket := step(DrainPlanned{Plan: plan})
	step(Answered{Ticket: ticket, Outcome: response.Asked})

	now = now.Add(landsFor)
	ticket = step(Tick{})
	leaving := first.DeepCopy()
	leaving.DeletionTimestamp = &metav1.Time{Time: now}
	step(Seen{Object: leaving})
	step(Answered{Ticket: ticket, Outcome: response.OK})
	if ticket == 0 || evicted != 2 {
		t.Errorf("%d pods count as evicted, want 2", evicted)
	}
}
