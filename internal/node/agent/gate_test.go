package agent

import (
	"context"
	"errors"
	"testing"
)

// TestNothingPassesTheGateAfterItsEnd: what waits for a slot when its pod has to end is not begun,
// even if a slot is free by then.
func TestNothingPassesTheGateAfterItsEnd(t *testing.T) {
	g := make(gate, 1)
	leave, err := g.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for _, slot := range []string{"taken", "free"} {
		if _, err := g.enter(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("with the slot %s: %v", slot, err)
		}
		if slot == "taken" {
			leave()
		}
	}
	if len(g) != 0 {
		t.Errorf("%d slots are taken", len(g))
	}
}
