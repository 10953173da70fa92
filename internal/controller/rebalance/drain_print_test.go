// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// TestThePlanOfADrainIsPrinted verifies the printed plan of a drain: the departing pods, the nodes
// of their successors, and the notes.
func TestThePlanOfADrainIsPrinted(t *testing.T) {
	var out bytes.Buffer
	plan := &rebalance.Draining{
		Pods: []rebalance.Departure{
			{Namespace: "shop", Name: "web-0", From: "node-1", To: "node-2", Or: []string{"node-3", "node-4"}},
			{Namespace: "shop", Name: "db-0", From: "node-1", To: "node-3", Waits: "budget db allows none to leave"},
			{Namespace: "shop", Name: "big", From: "node-1", Stranded: "2 of 3 nodes: Insufficient cpu"},
			{Namespace: "shop", Name: "alone", From: "node-1", Lost: true},
			{Namespace: "shop", Name: "kept", From: "node-1", Lost: true, Waits: "budget kept allows none to leave"},
			{Namespace: "shop", Name: "etl-x", From: "node-1", Lost: true, Fails: "Job/etl fails: backoffLimit 0"},
			{Namespace: "shop", Name: "db-1", From: "node-5", Held: true},
			{Namespace: "shop", Name: "web-1", From: "node-5", To: "node-2", Held: true},
		},
		Ignored: []rebalance.Kept{{Namespace: "kube-system", Name: "log-1", Why: "of a DaemonSet"}},
		Ending:  []rebalance.Kept{{Namespace: "shop", Name: "old", Node: "node-6", Held: true}},
	}
	const want = `8 pods to evict from node-1, node-5
POD          FROM     TO                   NOTE
shop/web-0   node-1   node-2 or 2 others
shop/db-0    node-1   node-3               budget db allows none to leave
shop/big     node-1   (pending)            2 of 3 nodes: Insufficient cpu
shop/alone   node-1   -                    no controller recreates it
shop/kept    node-1   -                    no controller recreates it; budget kept allows none to leave
shop/etl-x   node-1   -                    Job/etl fails: backoffLimit 0
shop/db-1    node-5   (none yet)           stays in Terminating
shop/web-1   node-5   node-2               stays in Terminating
of a DaemonSet: kube-system/log-1
already being deleted: shop/old
` + "HELD node-5\nHELD node-6\n"
	err := plan.Write(&out, []string{"node-1", "node-5"})
	text := out.String()
	for _, node := range []string{"node-5", "node-6"} {
		text = strings.Replace(text, disruption.WhyHeld(node), "HELD "+node, 1)
	}
	if err != nil || text != want {
		t.Errorf("says\n%s, want\n%s", text, want)
	}
}
