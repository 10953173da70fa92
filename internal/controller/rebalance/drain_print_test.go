package rebalance_test

import (
	"bytes"
	"testing"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// TestThePlanOfADrainIsPrinted prints the departing pods and their successors' nodes.
func TestThePlanOfADrainIsPrinted(t *testing.T) {
	var out bytes.Buffer
	plan := &rebalance.Draining{
		Pods: []rebalance.Departure{
			{Namespace: "shop", Name: "web-0", From: "node-1", To: "node-2", Or: []string{"node-3", "node-4"}},
			{Namespace: "shop", Name: "db-0", From: "node-1", To: "node-3", Waits: "budget db allows none to leave"},
			{Namespace: "shop", Name: "big", From: "node-1", Stranded: "2 of 3 nodes: Insufficient cpu"},
			{Namespace: "shop", Name: "alone", From: "node-1", Lost: true},
			{Namespace: "shop", Name: "kept", From: "node-1", Lost: true, Waits: "budget kept allows none to leave"},
		},
		Ignored: []rebalance.Kept{{Namespace: "kube-system", Name: "log-1", Why: "of a DaemonSet"}},
		Ending:  []rebalance.Kept{{Namespace: "shop", Name: "old"}},
	}
	const want = `5 pods to evict from node-1
POD          FROM     TO                   NOTE
shop/web-0   node-1   node-2 or 2 others
shop/db-0    node-1   node-3               budget db allows none to leave
shop/big     node-1   (pending)            2 of 3 nodes: Insufficient cpu
shop/alone   node-1   -                    nobody makes it again
shop/kept    node-1   -                    nobody makes it again; budget kept allows none to leave
of a DaemonSet: kube-system/log-1
being deleted already: shop/old
`
	if err := plan.Write(&out, []string{"node-1"}); err != nil || out.String() != want {
		t.Errorf("says\n%s, want\n%s", out.String(), want)
	}
}
