// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package owned

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": "file", "device": "/dev/zero", "to-fifo": "fifo"} {
		if err := os.Symlink(to, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"file", "link"} {
		if text, err := ReadFile(at(name)); string(text) != "text" || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	for _, name := range []string{"fifo", "device", "to-fifo", "."} {
		if _, err := ReadFile(at(name)); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHolesAreNotRead verifies that a file that is nearly all hole is refused: a terabyte of zeros
// takes no space on disk, but would be read for hours. A file with contents is read, however long
// it is.
func TestHolesAreNotRead(t *testing.T) {
	dir := t.TempDir()
	hole, full := filepath.Join(dir, "hole"), filepath.Join(dir, "full")
	if err := errors.Join(os.WriteFile(hole, []byte("text"), 0o600), os.Truncate(hole, 1<<40)); err != nil {
		t.Skip("this filesystem has no holes:", err)
	}
	if _, err := Open(hole); err == nil || !strings.Contains(err.Error(), "hole") {
		t.Errorf("a hole is opened: %v", err)
	}
	text := make([]byte, 65<<20) // random, so that no filesystem compresses it
	_, _ = rand.NewChaCha8([32]byte{1}).Read(text)
	if err := os.WriteFile(full, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(full)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
