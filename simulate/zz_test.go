package simulate_test

import (
	"os"
	"testing"

	"github.com/berth-k8s/berth/simulate"
)

func TestZZ(t *testing.T) {
	b, _ := os.ReadFile("/tmp/sim/dra.yaml")
	s := run(t, string(b), simulate.Options{Seed: 1})
	t.Log(s.Totals())
}
