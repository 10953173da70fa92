package decide

import (
	"flag"
	"os"
	"testing"
)

var (
	sequences = flag.Int("sequences", 10_000, "how many histories of clusters the fast way is held against the plain way in; 500 with -short")
	firstSeed = flag.Uint64("sequence", 1, "number of the first of them")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		*sequences = min(*sequences, 500)
	}
	worthwhile = 1 // so that few nodes are asked about together, too
	os.Exit(m.Run())
}

// TestFastWayAgreesWithPlainWay: whatever happened to the cluster before, the node that the fast
// way chooses is one of the best of the plain evaluator, with the same total, out of the same
// number of feasible nodes; and where there is none, it gives the same reasons and finds victims
// that cost the same.
func TestFastWayAgreesWithPlainWay(t *testing.T) { checkSequences(t, *firstSeed, *sequences) }
