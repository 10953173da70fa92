// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"testing"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// TestWhatIsCountedInMillionthsIsReadAsAShare verifies that a measure in millionths is printed as a
// share of a node, and that other measures are printed as plain counts.
func TestWhatIsCountedInMillionthsIsReadAsAShare(t *testing.T) {
	for want, measure := range map[string]rebalance.Measure{
		"1 move: use above target 63.75 % -> 3.75 % of a node.": {Name: "use above target (millionths)", Before: 637500, After: 37500},
		"1 move: violated constraints 3 -> 0.":                  {Name: "violated constraints", Before: 3},
	} {
		p := rebalance.Plan{Moves: make([]rebalance.Move, 1), Measures: []rebalance.Measure{measure}}
		if got := p.Summary(); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}
