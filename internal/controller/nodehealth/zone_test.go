// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
)

// TestALowRateIsNoReasonToWakeAllTheTime verifies that at a rate of 1e-12 nodes per second, at
// which the time to the next token overflows a Duration, Wake does not return times in the past.
func TestALowRateIsNoReasonToWakeAllTheTime(t *testing.T) {
	options := nodehealth.Defaults()
	options.EvictionRate = 1e-12
	c := newCluster(options)
	for _, name := range []string{"a-1", "a-2", "a-3", "a-4"} {
		c.add(name, "a")
	}
	c.Run(time.Minute)
	c.process.Observe = func(nodehealth.Event, []nodehealth.Action) {
		if at := c.core.Wake(c.Now); at.Before(c.Now) {
			t.Fatalf("at %v the core wants to be woken at %v", c.Now, at)
		}
	}
	c.silence("a", 2)
	c.Run(5 * time.Minute)
	if evicting := c.evicting()["a"]; evicting != 1 {
		t.Errorf("%d nodes have a taint that evicts, want the first one only", evicting)
	}
}
