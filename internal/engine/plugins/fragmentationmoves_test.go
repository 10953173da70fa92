// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestLossDoesNotDependOnReservations verifies that a node's loss for some pods does not depend on
// whether devices are reserved for them, or on which node.
func TestLossDoesNotDependOnReservations(t *testing.T) {
	c := cluster.New()
	for _, name := range []string{"node", "other"} {
		load(t, c, fmt.Sprintf("kind: Node\nmetadata: {name: %s}\n"+
			"status: {allocatable: {cpu: \"40\", memory: 1Gi, pods: \"9\", example.com/gpu: \"4000\"}}", name))
	}
	f, err := NewFragmentation(&FragmentationArgs{Resource: "example.com/gpu", Unit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var pods []*cluster.Pod
	for i, amount := range []string{"400", "2000", "300", "0"} {
		pods = append(pods, waiting(t, c, fmt.Sprintf("kind: Pod\nmetadata: {name: p%d}\n"+
			"spec: {containers: [{name: c, resources: {requests: {cpu: \"2\", example.com/gpu: %q}}}]}", i, amount)))
	}
	n := c.Node("node")
	empty, want := f.Loss(c, n, nil), f.Loss(c, n, pods)
	if want == empty {
		t.Fatalf("the loss is %d with and without pods: the case shows nothing", want)
	}

	for _, p := range pods {
		on := n
		if p.Name() == "p2" {
			on = c.Node("other")
		}
		undo, err := f.Reserve(c, p, on)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Loss(c, n, pods); got != want {
			t.Errorf("once %s has %v, the loss is %d, want %d", p.Name(), p.Devices, got, want)
		}
		undo()
		if got := f.Loss(c, n, pods); got != want {
			t.Errorf("once %s has given them back, the loss is %d, want %d", p.Name(), got, want)
		}
		if _, err := f.Reserve(c, p, on); err != nil {
			t.Fatal(err)
		}
	}
}
