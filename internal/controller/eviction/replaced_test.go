// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// TestReplacedNodeHasNoTaintsOfTheFormerOne verifies that pods stay if their tainted node is
// deleted and recreated without the taint, and the watch delivers only the new node. An event must
// report the cancellation.
func TestReplacedNodeHasNoTaintsOfTheFormerOne(t *testing.T) {
	core, now := eviction.New(eviction.Options{}), start
	node := eviction.Node{Name: "n", UID: "first", ResourceVersion: "1", Taints: []v1.Taint{{Key: "a", Effect: v1.TaintEffectNoExecute}}}
	seconds := int64(300)
	core.Step(now, eviction.NodeSeen{Node: node})
	core.Step(now, eviction.PodSeen{Pod: eviction.Pod{
		Name: types.NamespacedName{Name: "p"}, UID: "p", Node: "n", Bound: now,
		Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: &seconds}},
	}})
	now = now.Add(time.Minute)
	actions := core.Step(now, eviction.NodeSeen{Node: eviction.Node{Name: "n", UID: "second", ResourceVersion: "2"}})
	if due, _ := core.Due("p"); !due.Stays() || len(actions) != 1 {
		t.Errorf("%v, %v: want the pod to stay, and an event", due, actions)
	}
}
