// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestLeftoversDoNotPileUp verifies that the remains of a kill are overwritten, whatever their
// mode, and that no other files stay.
func TestLeftoversDoNotPileUp(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"replaced": Replace, "swapped": Swap} {
		if err := os.WriteFile(filepath.Join(dir, ".new-state"), []byte("half of an older and longer content"), 0o400); err != nil {
			t.Fatal(err)
		}
		if err := write(path, []byte(name), 0o640); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%v, %v", info, err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != name {
			t.Errorf("%q, %v", text, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("left: %v, %v", entries, err)
		}
	}
}

// TestAFailureLeavesTheOldFile verifies that a failed write leaves the old file, and no other
// files.
func TestAFailureLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	if err := os.MkdirAll(filepath.Join(path, "in the place of the file"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("new"), 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
