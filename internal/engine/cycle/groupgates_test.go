// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAGroupWithoutPodsOnNodesWakesNobody verifies that a group without pods on nodes wakes no
// pods, since it does not affect the pods that may be preempted.
func TestAGroupWithoutPodsOnNodesWakesNobody(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	core.Step(begin, Seen{Nodes, aNode("n", "4")})
	p := aPod("waits", "8")
	core.Step(begin, Seen{Pods, p})
	core.Step(begin, Tick{})
	for i := range 10 {
		now := begin.Add(time.Duration(i+1) * time.Minute / 10)
		g := gangOf(fmt.Sprint("g", i), 2)
		g.Spec.DisruptionMode = asOne()
		core.Step(now, Seen{PodGroups, g})
		core.Step(now, Tick{})
	}
	if n := core.View().Queue.Get(p.UID).Attempts; n != 1 {
		t.Errorf("the pod was tried %d times", n)
	}
}
