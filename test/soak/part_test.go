// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestAPartDoesNotHearCtrlC verifies that a part has a separate process group, so that Ctrl-C in
// the terminal does not reach it, and that a part ended by the campaign does not count as ended by
// itself.
func TestAPartDoesNotHearCtrlC(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &part{name: "sleeper", argv: []string{"sleep", "60"}, journal: newJournal("sleeper", file, func(string) {}),
		excused: func(*part, string) (string, bool) { return "", false },
		ended:   func(_ *part, why string, _ bool) { t.Errorf("it counts as ended by itself: %s", why) }}
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() { defer close(kept); p.keepRunning(ctx) }()
	for p.pid() == 0 {
		time.Sleep(time.Millisecond)
	}
	if group, err := syscall.Getpgid(p.pid()); err != nil || group == syscall.Getpgrp() {
		t.Errorf("it is in process group %d, the campaign's: %v", group, err)
	}
	stop()
	p.killProcess(0)
	<-kept
}
