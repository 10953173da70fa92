// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

var (
	chaosRuns = flag.Uint64("chaos", 300, "random clusters of TestNodesEndAsTheyAre")
	chaosSeed = flag.Uint64("chaos-seed", 0, "seed of the first of them")
)

// TestNodesEndAsTheyAre runs random clusters: kubelets fall silent and return, conditions and
// cordons change, foreign taints are added and removed, writes fail or conflict, watches break and
// controllers are replaced. It verifies that after a quiet period, every node has exactly the
// taints required by its state, once each, and all foreign taints.
func TestNodesEndAsTheyAre(t *testing.T) {
	injected := map[virtual.Injection]int{}
	for seed := *chaosSeed; seed < *chaosSeed+*chaosRuns; seed++ {
		r := rand.New(rand.NewPCG(seed, 1))
		c := chaos(r)
		virtual.Add(injected, c.line.Injected)
		for _, name := range c.order {
			if wrong := c.judge(c.nodes[name]); wrong != "" {
				t.Fatalf("seed %d: %s: %s\n%s", seed, name, wrong, show(c.nodes[name]))
			}
		}
	}
	t.Log(virtual.Summary(injected))
}

// chaos runs the life of a random cluster. The functions in prepare are called with the cluster
// before its life begins.
func chaos(r *rand.Rand, prepare ...func(*cluster)) *cluster {
	options := nodehealth.Defaults()
	options.EvictionRate = 1 // so that all silent nodes are tainted before the end
	options.MarkPodsAtZoneRate = r.IntN(2) == 0
	c := newCluster(options)
	for _, f := range prepare {
		f(c)
	}
	for _, zone := range []string{"a", "b", "c"} {
		for i := range 2 + r.IntN(4) {
			c.add(fmt.Sprintf("%s-%d", zone, i), zone)
		}
	}
	c.Run(time.Minute)
	c.line.Rules = virtual.Every(0.02)
	pick := func() *machine { return c.nodes[c.order[r.IntN(len(c.order))]] }
	for range 20 + r.IntN(60) {
		happens(c, r, pick())
		c.Run(time.Duration(r.IntN(60_000)) * time.Millisecond)
	}
	c.stale, c.line.Rules, c.line.KillAt, c.process.Ahead = 0, nil, 0, 0
	if !c.process.Running() {
		c.process.Start()
	}
	c.restore()
	c.nodes[c.order[0]].silent = false // otherwise no node could be evicted
	c.Run(10 * time.Minute)
	return c
}

func happens(c *cluster, r *rand.Rand, m *machine) {
	switch r.IntN(17) {
	case 0, 1, 2:
		m.silent = !m.silent
	case 3, 4:
		types := []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure, v1.NodeNetworkUnavailable, v1.NodeReady}
		if !m.silent {
			c.setCondition(m, types[r.IntN(len(types))], []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionFalse}[r.IntN(2)])
			c.changed(m)
		}
	case 5:
		m.Spec.Unschedulable = !m.Spec.Unschedulable
		c.changed(m)
	case 6, 7:
		if others := theirs(m); len(others) > 0 && r.IntN(2) == 0 {
			gone := others[0]
			m.Spec.Taints = slices.DeleteFunc(slices.Clone(m.Spec.Taints), func(t v1.Taint) bool { return t.Key == gone.Key })
		} else if len(others) < 3 {
			m.Spec.Taints = append(slices.Clone(m.Spec.Taints), v1.Taint{Key: fmt.Sprintf("k%d", c.rev), Effect: v1.TaintEffectNoExecute})
		}
		m.others = theirs(m)
		c.changed(m)
	case 8:
		c.stale = r.IntN(5)
	case 9: // an outage
		c.line.Rules = append(virtual.Every(0.02), virtual.Rule{Fault: virtual.Failing, Chance: 1, Writes: true, Count: 1 + r.IntN(5)})
	case 10:
		for _, w := range c.watches {
			w.Cut(c.Between(0, 2*time.Minute), r.IntN(2) == 0)
		}
	case 11:
		c.process.Start()
	case 12:
		w := c.watches[r.IntN(len(c.watches))]
		w.Refuse(c.Between(time.Second, time.Minute))
		c.After(c.Between(0, 3*time.Minute), func() { w.Restore(true) })
	case 13:
		c.line.KillAt, c.line.KillAfter = 1+r.IntN(4), r.IntN(2) == 0
	case 14:
		c.freeze(c.Between(0, 2*time.Minute))
	case 16: // a node is replaced by another node of the same name
		name, zone := m.Name, m.Labels[v1.LabelTopologyZone]
		c.remove(name)
		c.After(c.Between(0, 5*time.Second), func() { c.add(name, zone) })
		c.Run(5 * time.Second)
	case 15: // the clock steps
		c.process.Ahead = c.Between(-time.Hour, time.Hour)
	}
	if !c.process.Running() {
		c.process.Start()
	}
}

// restore ends the breaks of all watches.
func (c *cluster) restore() {
	for _, w := range c.watches {
		w.Restore(true)
	}
}

// theirs returns the node's foreign taints.
func theirs(m *machine) []v1.Taint {
	return slices.DeleteFunc(slices.Clone(m.Spec.Taints), func(t v1.Taint) bool { return t.Key[0] != 'k' })
}

// judge returns the defects of the node's taints, or an empty string. The expected taints are
// listed row by row instead of computed as in Core.
func (c *cluster) judge(m *machine) string {
	is := func(t v1.NodeConditionType, status v1.ConditionStatus) bool {
		found := condition(m.Node, t)
		return found != nil && found.Status == status
	}
	if m.silent && !is(v1.NodeReady, v1.ConditionUnknown) {
		return "silent, and not Unknown"
	}
	want := map[string]bool{
		"node.kubernetes.io/not-ready:NoSchedule":           is(v1.NodeReady, v1.ConditionFalse),
		"node.kubernetes.io/not-ready:NoExecute":            is(v1.NodeReady, v1.ConditionFalse),
		"node.kubernetes.io/unreachable:NoSchedule":         is(v1.NodeReady, v1.ConditionUnknown),
		"node.kubernetes.io/unreachable:NoExecute":          is(v1.NodeReady, v1.ConditionUnknown),
		"node.kubernetes.io/memory-pressure:NoSchedule":     is(v1.NodeMemoryPressure, v1.ConditionTrue),
		"node.kubernetes.io/disk-pressure:NoSchedule":       is(v1.NodeDiskPressure, v1.ConditionTrue),
		"node.kubernetes.io/pid-pressure:NoSchedule":        is(v1.NodePIDPressure, v1.ConditionTrue),
		"node.kubernetes.io/network-unavailable:NoSchedule": is(v1.NodeNetworkUnavailable, v1.ConditionTrue),
		"node.kubernetes.io/unschedulable:NoSchedule":       m.Spec.Unschedulable,
	}
	if got := theirs(m); !slices.Equal(got, m.others) {
		return fmt.Sprintf("others put on %v, it has %v", m.others, got)
	}
	mayEvict := c.mayEvict(m)
	for taint, wanted := range want {
		count := 0
		for i := range m.Spec.Taints {
			if m.Spec.Taints[i].ToString() == taint {
				count++
			}
		}
		evicts := taint[len(taint)-len("NoExecute"):] == "NoExecute"
		switch {
		case count > 1:
			return "twice " + taint
		case count == 1 && !wanted:
			return "should not have " + taint
		case count == 0 && wanted && (!evicts || mayEvict):
			return "should have " + taint
		}
	}
	return ""
}

// mayEvict reports whether the node's zone currently adds evicting taints.
func (c *cluster) mayEvict(m *machine) bool {
	zone := nodehealth.NodeOf(m.Node).Zone
	for _, z := range c.core.Zones() {
		if z.Name == zone {
			return z.Rate > 0
		}
	}
	return false
}
