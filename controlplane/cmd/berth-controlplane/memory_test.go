package main

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	for given, want := range map[string]int64{"4Gi": 4 << 30, "1M": 1e6} {
		if got, err := memoryLimit(given); got != want || err != nil {
			t.Errorf("%s: %d, %v", given, got, err)
		}
	}
	for _, given := range []string{"-1", "0", "much"} {
		if _, err := memoryLimit(given); err == nil {
			t.Errorf("%s is accepted", given)
		}
	}
	if got, err := memoryLimit(""); got <= 0 || got > mostMemory || err != nil {
		t.Errorf("by default: %d, %v", got, err)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(3 << 30))
	if got, err := memoryLimit(""); got != 3<<30 || err != nil {
		t.Errorf("with GOMEMLIMIT: %d, %v", got, err)
	}
}

// TestTooMuchMemoryIsAClearEnd: beyond the limit the process ends with the
// reason and the remedy.
func TestTooMuchMemoryIsAClearEnd(t *testing.T) {
	defer debug.SetMemoryLimit(math.MaxInt64)
	hold := make([]byte, 64<<20)
	for i := 0; i < len(hold); i += 4096 {
		hold[i] = 1
	}
	said := ""
	watchMemory(context.Background(), 32<<20, func(err error) { said = err.Error() })
	runtime.KeepAlive(hold)
	if !strings.Contains(said, "the limit is 32 MiB") || !strings.Contains(said, "GOMEMLIMIT") {
		t.Errorf("it says %q", said)
	}
}
