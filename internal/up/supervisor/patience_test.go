// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAPartHasTimeToStartWhileProgressIsSeen verifies that a starting part fails after two minutes
// without output. While it logs or prints something, it fails only after a quarter of an hour.
func TestAPartHasTimeToStartWhileProgressIsSeen(t *testing.T) {
	for what, c := range map[string]struct {
		progress func(minute int) signs
		minutes  int
		says     string
	}{
		"silent":        {func(int) signs { return signs{} }, 2, "no progress in the last 2m0s, not ready after 2m0s"},
		"its log grows": {func(m int) signs { return signs{log: int64(m)} }, 15, "not ready after 15m0s"},
		"it says more": {func(m int) signs { return signs{lines: int64(m), last: "step"} }, 15,
			"not ready after 15m0s; its last message: step"},
		"stuck after ten": {func(m int) signs { return signs{lines: int64(min(m, 10)), last: "etcd ready"} }, 12,
			"no progress in the last 2m0s, not ready after 12m0s; its last message: etcd ready"},
		"a log that was rotated": {func(m int) signs { return signs{log: int64(100 - m)} }, 15, "not ready after 15m0s"},
	} {
		t.Run(what, func(t *testing.T) {
			began := time.Now()
			wait := newPatience(began)
			for minute := 1; ; minute++ {
				why := wait.whyOver(began.Add(time.Duration(minute)*time.Minute), c.progress(minute))
				if why == "" && minute < c.minutes {
					continue
				}
				if minute != c.minutes || !strings.HasPrefix(why, c.says) {
					t.Errorf("after %d minutes: %q, want %q after %d", minute, why, c.says, c.minutes)
				}
				return
			}
		})
	}
}

// TestAStartThatTakesLongIsReported verifies that the elapsed time and the last output of a
// starting part are reported.
func TestAStartThatTakesLongIsReported(t *testing.T) {
	s, d := supervise(t)
	s.looks = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	up, ended := make(chan struct{}), make(chan error, 1)
	part := script("slow", "echo etcd ready; while [ ! -e "+s.Dir+"/go ]; do sleep 0.05; done; echo ready; exec sleep 1000")
	go func() { ended <- s.Run(ctx, []Part{part}, func() { close(up) }) }()
	if line := d.await(t, "its last message"); line != "slow: still starting after 0s; its last message: etcd ready" {
		t.Errorf("said was %q", line)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-up:
	case err := <-ended:
		t.Fatalf("ended before it was up: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
