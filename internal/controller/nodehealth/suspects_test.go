// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// suspicious returns a cluster of four nodes in two zones, which has run for a minute.
func suspicious() *cluster {
	c := newCluster(nodehealth.Defaults())
	for _, name := range []string{"a-1", "a-2", "b-1", "b-2"} {
		c.add(name, name[:1])
	}
	c.Run(time.Minute)
	return c
}

func (c *cluster) unknown() (names []string) {
	for _, name := range c.order {
		if condition(c.nodes[name].Node, v1.NodeReady).Status == v1.ConditionUnknown {
			names = append(names, name)
		}
	}
	return names
}

// TestNoNodeIsSilentBecauseTheWatchIsBehind verifies that if the watch lags for ten minutes without
// being broken, no healthy node is marked Unknown, and that the silent node is marked after the
// watch has caught up.
func TestNoNodeIsSilentBecauseTheWatchIsBehind(t *testing.T) {
	c := suspicious()
	c.watches[leases].Break()
	c.nodes["b-2"].silent = true
	c.Run(10 * time.Minute)
	if names := c.unknown(); names != nil {
		t.Errorf("%q were taken for silent while the watch was behind", names)
	}

	c.watches[leases].Restore(false)
	c.Run(2 * time.Minute)
	if names := c.unknown(); len(names) != 1 || names[0] != "b-2" {
		t.Errorf("%q are silent, want b-2", names)
	}
}

// TestNoNodeIsSilentBeforeItsLeaseWasRead verifies that while reads fail, the Lease is read again
// with each pass before the node counts as silent. A node without a Lease counts as silent
// immediately.
func TestNoNodeIsSilentBeforeItsLeaseWasRead(t *testing.T) {
	c := suspicious()
	reads := 0
	c.process.Observe = func(_ nodehealth.Event, actions []nodehealth.Action) {
		for _, action := range actions {
			if _, ok := action.(nodehealth.ReadLease); ok {
				reads++
			}
		}
	}
	c.nodes["b-2"].silent = true
	c.line.Rules = []virtual.Rule{{Fault: virtual.Failing, Chance: 1, Kind: "ReadLease"}}
	c.Run(3 * time.Minute)
	if names := c.unknown(); names != nil {
		t.Errorf("%q were taken for silent though no Lease could be read", names)
	}
	if reads < 20 || reads > 40 {
		t.Errorf("%d reads in about two minutes of passes", reads)
	}

	c.line.Rules = nil
	c.Run(6 * time.Second)
	if names := c.unknown(); len(names) != 1 || names[0] != "b-2" {
		t.Errorf("%q are silent, want b-2", names)
	}

	c.nodes["a-1"].silent, c.nodes["a-1"].lease = true, 0
	c.Run(time.Minute)
	if names := c.unknown(); len(names) != 2 {
		t.Errorf("%q are silent, want a-1, too, which has no Lease", names)
	}
}

// TestASilentNodeThatIsBackWhenItsLeaseIsRead verifies that a node that recovers or is deleted
// while its Lease is being read is not marked Unknown.
func TestASilentNodeThatIsBackWhenItsLeaseIsRead(t *testing.T) {
	c := suspicious()
	c.process.Observe = func(_ nodehealth.Event, actions []nodehealth.Action) {
		for _, action := range actions {
			if read, ok := action.(nodehealth.ReadLease); ok && read.Node == "a-1" {
				m := c.nodes["a-1"]
				m.renews, m.lease = m.renews+1, c.leases+1000
				c.After(3*time.Millisecond, func() { c.showLease(m) })
				m.silent = false
			} else if ok && c.nodes[read.Node] != nil {
				name := read.Node
				c.After(time.Millisecond, func() { c.remove(name) })
			}
		}
	}
	c.nodes["a-1"].silent, c.nodes["b-2"].silent = true, true
	c.Run(5 * time.Minute)
	if names := c.unknown(); names != nil || c.nodes["b-2"] != nil {
		t.Errorf("%q are silent", names)
	}
}
