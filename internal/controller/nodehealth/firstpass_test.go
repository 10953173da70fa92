// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
)

// TestANodeIsTakenAtItsWordForOnePass verifies that a silent node is judged by its reported status
// for one pass, even if the grace period is shorter than the interval between passes: a node that
// reported not ready first gets the taint not-ready, and one pass later the taint unreachable.
func TestANodeIsTakenAtItsWordForOnePass(t *testing.T) {
	options := nodehealth.Defaults()
	options.MonitorPeriod, options.MonitorGracePeriod, options.EvictionRate = time.Second, time.Millisecond, 100
	c := newCluster(options)
	c.Run(options.MonitorPeriod / 2)
	m := c.addUnreported("n", "z")
	m.silent, m.Labels["node.kubernetes.io/exclude-disruption"] = true, ""
	c.setCondition(m, v1.NodeReady, v1.ConditionFalse)
	c.changed(m)
	for _, want := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		c.Run(options.MonitorPeriod)
		if !m.hasEvicting(want) {
			t.Errorf("after %v the node has the taints %v, want %s", c.Now.Sub(begin), m.Spec.Taints, want)
		}
	}
}

func (m *machine) hasEvicting(key string) bool {
	return slices.ContainsFunc(m.Spec.Taints, func(t v1.Taint) bool { return t.Key == key && t.Effect == v1.TaintEffectNoExecute })
}
