// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestTargetsAreTriedFirst verifies that pods of a controller fill its targets, by name, except for
// nodes that cannot take them, and that other pods, and pods beyond the targets, go anywhere.
func TestTargetsAreTriedFirst(t *testing.T) {
	for _, mode := range []string{"plain", "spread", "affinity", "anti"} {
		c := benchCluster(20, false)
		profile := plugins.Default()
		profile.Targets = plugins.Targets{"web": {"node-11": 1, "node-3": 1, "node-7": 1, "missing": 1}}
		closed := c.Node("node-3").Object().DeepCopy()
		closed.Spec.Unschedulable = true
		c.SetNode(closed)
		d := New(c, profile, 1)
		for i, want := range []string{"node-11", "node-7", "", ""} {
			pod := benchPod(i, mode)
			pod.UID = types.UID(fmt.Sprint("pod-", i))
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true)}}
			p := c.Pending(pod)
			best, err := d.Best(p)
			decision := d.Decide(p)
			switch {
			case err != nil || !slices.Contains(best, decision.Node) || want != "" && len(best) != 1:
				t.Errorf("%s: the best nodes of pod %d are %v (%v), and it goes to %v", mode, i, best, err, decision.Node)
			case decision.Node == nil || decision.Node.Name == "node-3" || want != "" && decision.Node.Name != want:
				t.Fatalf("%s: pod %d goes to %v, want %q", mode, i, decision.Node, want)
			case want == "" && decision.Feasible < 2:
				t.Errorf("%s: pod %d is decided among %d nodes, although no target is left", mode, i, decision.Feasible)
			}
			c.Place(p, decision.Node)
		}
		p := c.Pending(benchPod(9, mode))
		if decision := d.Decide(p); decision.Feasible < 2 {
			t.Errorf("%s: a pod without controller is decided among %d nodes", mode, decision.Feasible)
		}
	}
}
