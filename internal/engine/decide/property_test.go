// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"flag"
	"os"
	"testing"
)

var (
	sequences = flag.Int("sequences", 1_000, "how many histories of clusters the fast way is held against the plain way in; 500 with -short")
	firstSeed = flag.Uint64("sequence", 1, "number of the first of them")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		*sequences = min(*sequences, 500)
	}
	worthwhile = 1 // use all cores even for few nodes
	os.Exit(m.Run())
}

// TestFastWayAgreesWithPlainWay verifies that after any history of the cluster, the fast path
// chooses one of the plain evaluator's best nodes, with the same total and the same number of
// feasible nodes. If no node is feasible, the reasons and the cost of the victims must be the same.
func TestFastWayAgreesWithPlainWay(t *testing.T) { checkSequences(t, *firstSeed, *sequences) }
