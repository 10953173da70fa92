// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
)

// TestWaitingWritesAreNotCopied verifies that the writes of many nodes that wait for responses are
// not copied by each event. Otherwise, the renewals of the other nodes of a large cluster could not
// be followed while a few silent nodes are marked.
func TestWaitingWritesAreNotCopied(t *testing.T) {
	const nodes, renewals = 5000, 1000
	core, now := nodehealth.New(nodehealth.Defaults()), time.Unix(1_800_000_000, 0)
	for i := range nodes { // with a taint to be removed
		name := fmt.Sprintf("n-%d", i)
		core.Step(now, nodehealth.NodeSeen{Node: nodehealth.Node{
			Name: name, UID: types.UID(name), Created: now, Taints: []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoSchedule}},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		}})
	}
	core.Step(now, nodehealth.NodesListed{})
	core.Step(now, nodehealth.LeasesListed{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range renewals {
		core.Step(now, nodehealth.LeaseSeen{Name: "n-0", ResourceVersion: fmt.Sprint(i), Renewed: now.Add(time.Duration(i))})
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / renewals; each > nodes {
		t.Errorf("a renewal allocates %d bytes while the writes of %d nodes wait", each, nodes)
	}
}
