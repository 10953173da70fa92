// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
)

// TestANodeShowsWhatItsDrainWaitsFor verifies that a cordoned node has its roll note and the last
// reported wait of each of its pods, that events may arrive before the pods and in any order, and
// that the waits end with the pod and with the cordon.
func TestANodeShowsWhatItsDrainWaitsFor(t *testing.T) {
	c, now := New(), time.Unix(1_000_000, 0)
	waits := func(seconds int64, why string) {
		c.EventSeen(Event{UID: why, Kind: "Pod", Namespace: "shop", Name: "web-5d-a", Reason: "DrainWaiting", Message: why, At: 1000 * seconds, pod: "uid-web-5d-a"})
	}
	shown := func() Node {
		c.Changes(now)
		return *c.nodes["n1"].shown
	}
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{execute.RollAnnotation: "note"}}, Spec: v1.NodeSpec{Unschedulable: true}}
	waits(2, "second")
	waits(1, "first")
	c.NodeSeen(now, NodeOf(n))
	c.PodSeen(now, PodOf(ownedPod("web-5d-a", "n1", now)))
	if row := shown(); row.Roll != "note" || len(row.Waits) != 1 || row.Waits[0].Message != "second" || row.Waits[0].Name != "web-5d-a" {
		t.Errorf("%+v", row)
	}
	waits(3, "third")
	if row := shown(); len(row.Waits) != 1 || row.Waits[0].Message != "third" {
		t.Errorf("after another event: %+v", row.Waits)
	}
	open := n.DeepCopy()
	open.Spec.Unschedulable = false
	c.NodeSeen(now, NodeOf(open))
	if row := shown(); len(row.Waits) != 0 {
		t.Errorf("uncordoned: %+v", row.Waits)
	}
	c.NodeSeen(now, NodeOf(n))
	c.PodGone(now, "uid-web-5d-a")
	if row := shown(); len(row.Waits) != 0 || len(c.waits) != 0 {
		t.Errorf("without the pod: %+v, kept %v", row.Waits, c.waits)
	}
}
