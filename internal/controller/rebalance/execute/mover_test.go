// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/pacing"
)

// TestPausesHonorTheServer verifies that repetitions wait for a Retry-After of some seconds, and
// that a longer one does not delay them for more than lastPause.
func TestPausesHonorTheServer(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{10 * time.Second: 10 * time.Second, time.Hour: lastPause} {
		if got := pauseAfter(0, asked); got != want {
			t.Errorf("asked for %v, a failed request is repeated after %v, want %v", asked, got, want)
		}
		if got := putOffFor(Answered{RetryAfter: asked}); got != want {
			t.Errorf("asked for %v, a refused eviction is repeated after %v, want %v", asked, got, want)
		}
	}
}

// TestDeletedPodsLeaveNoPaces verifies that the table of paces shrinks with the pods.
func TestDeletedPodsLeaveNoPaces(t *testing.T) {
	d, pod := NewDrainer(DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a"}}}), podOf("shop", "web-1", "web")
	d.Step(time.Unix(1, 0), Seen{Object: pod})
	d.paces[pod.UID] = &pacing.Pace{}
	if d.Step(time.Unix(2, 0), Gone{Object: pod}); len(d.paces) != 0 {
		t.Errorf("%d paces remain", len(d.paces))
	}
}
