// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"
	"time"
)

// TestWhatIsKeptOfHistoryIsBounded verifies that the stored history is bounded, not only the sent
// history.
func TestWhatIsKeptOfHistoryIsBounded(t *testing.T) {
	var h history
	for i := range 20 * mostMoments {
		h.countEvent(time.Unix(int64(i)*10, 0), evictions)
	}
	if len(h.moments) > 2*mostMoments || len(h.lastMoments()) != mostMoments {
		t.Errorf("%d moments are kept, %d told", len(h.moments), len(h.lastMoments()))
	}
	if last := h.lastMoments()[mostMoments-1]; last[momentAt] != int64(20*mostMoments-1)*10_000 || last[evictions] != 1 {
		t.Errorf("the last is %v", last)
	}
}
