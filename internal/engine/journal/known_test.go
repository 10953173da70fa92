package journal

import (
	"fmt"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// TestKindsThatFollowLaterAreKnown in addition to the first ones; each once, though the next file
// begins with all of them.
func TestKindsThatFollowLaterAreKnown(t *testing.T) {
	k := newKnown()
	for _, kinds := range [][]cycle.Kind{{cycle.Nodes, cycle.Pods}, {cycle.ResourceClaims}, {cycle.Nodes, cycle.Pods, cycle.ResourceClaims}} {
		k.note(cycle.Follows{Kinds: kinds}, nil)
	}
	if got, want := fmt.Sprint(k.kinds), fmt.Sprint([]cycle.Kind{cycle.Nodes, cycle.Pods, cycle.ResourceClaims}); got != want {
		t.Errorf("follows %s, want %s", got, want)
	}
}
