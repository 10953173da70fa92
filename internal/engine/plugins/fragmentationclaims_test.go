// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import "testing"

// TestKeptClaimScoresOutliveLookups verifies that cached scores for pods with equal demands are
// found again, regardless of the number of nodes and the size of the cache, and that another kind
// of pods evicts them.
func TestKeptClaimScoresOutliveLookups(t *testing.T) {
	for _, c := range []struct {
		name         string
		nodes, kinds int
	}{
		{"full", mostClaimScores / 4, 4},
		{"half of the bound", mostClaimScores/2 + 1, 1},
		{"beyond the bound", mostClaimScores + 1, 1},
	} {
		var scores claimScores
		u := &future{}
		for kind := range c.kinds {
			scores.keptFor(u, claimScoresKey{cpu: int64(kind)}, c.nodes)[0].score = int64(1 + kind)
		}
		for kind := range c.kinds {
			if got := scores.keptFor(u, claimScoresKey{cpu: int64(kind)}, c.nodes)[0].score; got != int64(1+kind) {
				t.Errorf("%s: the score kept for kind %d is %d, want %d", c.name, kind, got, 1+kind)
			}
		}

		scores.keptFor(u, claimScoresKey{cpu: -1}, c.nodes)
		if len(scores.scores) != 1 {
			t.Errorf("%s: %d kinds are kept, want only the new one", c.name, len(scores.scores))
		}
		if scores.keptFor(&future{}, claimScoresKey{cpu: -1}, c.nodes); len(scores.scores) != 1 {
			t.Errorf("%s: of another future %d kinds are kept, want 1", c.name, len(scores.scores))
		}
	}
}
