// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"
)

// TestTheSecondSignalDoesNotWaitForAPlan verifies that the second signal ends a command during
// uninterruptible planning, but waits for work that finishes by itself before that signal.
func TestTheSecondSignalDoesNotWaitForAPlan(t *testing.T) {
	interrupt := func() {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
	}
	planned := make(chan struct{})
	defer close(planned)
	cancelled := false
	began := time.Now()
	returned, err := untilTwice(io.Discard, "", interrupt, func() { cancelled = true }, func() error {
		interrupt()
		<-planned
		return nil
	})
	if took := time.Since(began); returned || err != nil || !cancelled || took > 30*time.Second {
		t.Errorf("returned: %t, %v, cancelled: %t, after %v", returned, err, cancelled, took)
	}
	stopped, broken := make(chan struct{}), errors.New("broken")
	returned, err = untilTwice(io.Discard, "", func() { close(stopped) }, func() { t.Error("cancelled") }, func() error {
		interrupt()
		<-stopped
		return broken
	})
	if !returned || !errors.Is(err, broken) {
		t.Errorf("returned: %t, %v", returned, err)
	}
}
