// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestEveryFaultIsSurvived verifies the properties of virtual.Verify: within two minutes after any
// fault, a node that fell silent during the fault is tainted, and a node that came back is not.
func TestEveryFaultIsSurvived(t *testing.T) {
	injected := virtual.Verify(func() *virtual.Subject { return subject(false) }, t.Errorf)
	virtual.Add(injected, virtual.Verify(func() *virtual.Subject { return subject(true) }, t.Errorf))
	t.Log(virtual.Summary(injected))
}

// subject returns a cluster in which a node falls silent, or a silent node comes back.
func subject(back bool) *virtual.Subject {
	c := newCluster(nodehealth.Defaults())
	for _, node := range []string{"a", "b", "c", "d"} {
		c.add(node, "z")
	}
	c.nodes["a"].silent = back
	c.Run(3 * time.Minute)
	c.process.Kill()
	drop := func(drops func(m *machine)) func(bool) {
		return func(on bool) {
			if c.policy = nil; on {
				c.policy = drops
			}
		}
	}
	kinds := []string{"ReadLease", "WriteStatus", "WriteNode", "MarkPods"}
	if back {
		kinds = []string{"WriteNode"}
	}
	return &virtual.Subject{
		Time: c.Time, Process: c.process, Faults: &c.line.Faults, Requests: &c.line.Requests, Watches: c.watches, Kinds: kinds,
		SetClock: func(ahead time.Duration) { c.process.Ahead = ahead },
		Policies: map[string]func(bool){
			"taints dropped":                drop(func(m *machine) { m.Spec.Taints = nil }),
			"NoExecute dropped":             drop(func(m *machine) { m.Spec.Taints = slices.DeleteFunc(m.Spec.Taints, evicts) }),
			"condition dropped":             drop(func(m *machine) { condition(m.Node, v1.NodeReady).Status = v1.ConditionTrue }),
			"conditions and taints dropped": drop(func(m *machine) { condition(m.Node, v1.NodeReady).Status, m.Spec.Taints = v1.ConditionTrue, nil }),
		},
		Begin:    func() { c.nodes["a"].silent = !back },
		Recovers: 2 * time.Minute,
		Wrong: func() (wrong []string) {
			for _, name := range c.order {
				m := c.nodes[name]
				unknown := condition(m.Node, v1.NodeReady).Status == v1.ConditionUnknown
				if evicts := m.has(v1.TaintNodeUnreachable + ":NoExecute"); evicts != m.silent || unknown != m.silent || !m.silent && len(m.Spec.Taints) > 0 {
					wrong = append(wrong, fmt.Sprintf("%s, silent: %t, is Unknown: %t, and has %v", name, m.silent, unknown, m.Spec.Taints))
				}
				if m.silent && m.marked == 0 {
					wrong = append(wrong, "the pods of "+name+" are not marked")
				}
			}
			return wrong
		},
		Clear: func() {
			for _, name := range slices.Clone(c.order) {
				c.remove(name)
			}
		},
		Entries: func() int { return c.process.Core().(waking).Entries() },
	}
}

// TestDroppedWritesAreReported verifies that few events report writes that a policy drops.
func TestDroppedWritesAreReported(t *testing.T) {
	s := subject(false)
	dropped := 0
	s.Process.(*virtual.Process[nodehealth.Event, nodehealth.Action]).Observe = func(_ nodehealth.Event, actions []nodehealth.Action) {
		for _, action := range actions {
			if _, ok := action.(nodehealth.Dropped); ok {
				dropped++
			}
		}
	}
	s.Process.Start()
	s.Policies["taints dropped"](true)
	s.Begin()
	s.Run(10 * time.Minute)
	if dropped == 0 || dropped > 40 {
		t.Errorf("%d events report that a write was dropped", dropped)
	}
}

func evicts(t v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }

// TestAnAnnotatedLeaseIsNoSignOfLife verifies that a write of a Lease without a renewal is no sign
// of life, neither of its node nor of another silent node.
func TestAnAnnotatedLeaseIsNoSignOfLife(t *testing.T) {
	c := newCluster(nodehealth.Defaults())
	for _, node := range []string{"a", "b", "c", "d"} {
		c.add(node, "z")
	}
	c.Run(time.Minute)
	c.nodes["a"].silent, c.nodes["b"].silent = true, true
	var annotate func()
	annotate = func() {
		c.leases++
		c.nodes["a"].lease = c.leases
		c.showLease(c.nodes["a"])
		c.After(3*time.Second, annotate)
	}
	annotate()
	c.Run(5 * time.Minute)
	for _, name := range []string{"a", "b"} {
		if m := c.nodes[name]; !m.has(v1.TaintNodeUnreachable + ":NoExecute") {
			t.Errorf("%s has been silent for five minutes, and has %v", name, m.Spec.Taints)
		}
	}
}

// TestAWatchThatNeverCatchesUpHidesNoNode verifies that a silent node is detected by reads of
// Leases if the watch permanently lags without being broken.
func TestAWatchThatNeverCatchesUpHidesNoNode(t *testing.T) {
	c := newCluster(nodehealth.Defaults())
	for _, node := range []string{"a", "b", "c", "d"} {
		c.add(node, "z")
	}
	c.Run(time.Minute)
	c.watches[leases].Break()
	c.Run(2 * time.Minute)
	c.nodes["a"].silent = true
	c.Run(10 * time.Minute)
	for _, name := range c.order {
		if m := c.nodes[name]; m.has(v1.TaintNodeUnreachable+":NoExecute") != m.silent {
			t.Errorf("%s, silent: %v, has %v", name, m.silent, m.Spec.Taints)
		}
	}
}

// TestListsReplaceAWatchThatIsRefused verifies that silent nodes are detected by lists if a watch
// is refused, and that after an outage, in which no node could renew its Lease, no node counts as
// silent.
func TestListsReplaceAWatchThatIsRefused(t *testing.T) {
	for _, outage := range []time.Duration{0, 30 * time.Second, 5 * time.Minute} {
		c := newCluster(nodehealth.Defaults())
		for _, node := range []string{"a", "b", "c", "d"} {
			c.add(node, "z")
		}
		c.Run(time.Minute)
		for _, w := range c.watches {
			w.Cut(time.Hour, false)
		}
		for _, m := range c.nodes {
			m.silent = m.Name == "a" || outage > 0
		}
		c.Run(outage)
		list := func() {
			c.listLeases()
			c.step(nodehealth.Polled{})
		}
		list()
		c.Run(time.Second)
		for _, name := range c.order {
			if taints := c.nodes[name].Spec.Taints; len(taints) > 0 {
				t.Errorf("after an outage of %v: %s has %v", outage, name, taints)
			}
		}
		for _, m := range c.nodes {
			m.silent = m.Name == "a" && outage == 0
		}
		for range 10 {
			c.Run(30 * time.Second)
			list()
		}
		c.Run(30 * time.Second)
		for _, name := range c.order {
			if m := c.nodes[name]; m.has(v1.TaintNodeUnreachable+":NoExecute") != m.silent {
				t.Errorf("outage of %v: %s, silent: %v, has %v", outage, name, m.silent, m.Spec.Taints)
			}
		}
	}
}
