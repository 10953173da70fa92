package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/usage"
)

// TestThePlanOfADrainIsPrinted: who leaves, and for which node.
func TestThePlanOfADrainIsPrinted(t *testing.T) {
	var out bytes.Buffer
	err := printDraining(&out, []string{"node-1"}, &rebalance.Draining{
		Pods: []rebalance.Departure{
			{Namespace: "shop", Name: "web-0", From: "node-1", To: "node-2", Or: []string{"node-3", "node-4"}},
			{Namespace: "shop", Name: "db-0", From: "node-1", To: "node-3", Waits: "budget db allows none to leave"},
			{Namespace: "shop", Name: "big", From: "node-1", Stranded: "2 of 3 nodes: Insufficient cpu"},
			{Namespace: "shop", Name: "alone", From: "node-1", Lost: true},
		},
		Ignored: []rebalance.Kept{{Namespace: "kube-system", Name: "log-1", Why: "of a DaemonSet"}},
		Ending:  []rebalance.Kept{{Namespace: "shop", Name: "old"}},
	})
	const want = `4 pods to evict from node-1
POD          FROM     TO                   NOTE
shop/web-0   node-1   node-2 or 2 others
shop/db-0    node-1   node-3               budget db allows none to leave
shop/big     node-1   (pending)            2 of 3 nodes: Insufficient cpu
shop/alone   node-1   -                    nobody makes it again
of a DaemonSet: kube-system/log-1
being deleted already: shop/old
`
	if err != nil || out.String() != want {
		t.Errorf("says (%v)\n%s, want\n%s", err, out.String(), want)
	}
}

// Nodes are named as in kubectl, and as in berth what-if drain.
func TestNodesToDrainAreNamedAsInKubectl(t *testing.T) {
	for args, want := range map[string]string{
		"a b": "a b", "node/a nodes/b no/c": "a b c", "node a": "a", "nodes a b": "a b", "node": "node", "a node/a a": "a", "pod/a": "", "node/": "",
	} {
		names, err := nodesNamed(strings.Fields(args))
		if strings.Join(names, " ") != want || (err != nil) != (want == "") || err != nil && !usage.Is(err) {
			t.Errorf("%s: %v, %v", args, names, err)
		}
	}
	if names, _, err := nodesAndConditions([]string{"node/a", "b", "MemoryPressure=True"}); err != nil || strings.Join(names, " ") != "a b" {
		t.Errorf("of conditions: %v, %v", names, err)
	}
}
