// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFilesThatAKillHasLeft verifies that temporary files left by a kill are removed when the
// recording is continued or restarted.
func TestFilesThatAKillHasLeft(t *testing.T) {
	for name, hold := range map[string]func(string) (func(), error){"begun": createFolder, "continued": claimFolder} {
		dir := t.TempDir()
		write := func(name string) string {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		left := []string{write(writingPrefix + "1"), write("sessions/a/" + writingPrefix + "2")}
		kept := write("sessions/a/pods.json")
		if name == "continued" {
			write(IndexFile)
		}
		release, err := hold(dir)
		if err != nil || release == nil {
			t.Fatal(name, err)
		}
		release()
		for _, path := range left {
			if _, err := os.Lstat(path); err == nil {
				t.Errorf("%s: %s is still there", name, path)
			}
		}
		if _, err := os.Lstat(kept); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
