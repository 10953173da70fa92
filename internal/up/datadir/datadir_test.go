// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new")
	first, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "another berth up uses it (process ") {
		t.Errorf("second: %v", err)
	}
	first.Close()
	second, err := Open(path)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	second.Close()
}

func TestOnlyBerthsOwnDirectoryIsUsedAndCleared(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		mine bool
	}{
		"empty":           {"", true},
		"berth's":         {"berth.lock", true},
		"control plane's": {"etcd/member/snap", true},
		"somebody's":      {"thesis.tex", false},
		"a version file":  {"version", false},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			if c.file != "" {
				write(t, filepath.Join(path, c.file))
			}
			d, err := Open(path)
			if (err == nil) != c.mine {
				t.Fatalf("open: %v", err)
			}
			if err != nil {
				if _, err := os.Stat(filepath.Join(path, c.file)); err != nil {
					t.Errorf("the file is gone: %v", err)
				}
				return
			}
			defer d.Close()
			write(t, d.Join("pki/ca.crt"))
			if err := d.Clear(); err != nil {
				t.Fatal(err)
			}
			if left, _ := os.ReadDir(path); len(left) != 1 || left[0].Name() != lockName {
				t.Errorf("left after clearing: %v", left)
			}
		})
	}
}

func TestADirectoryThatOthersMayWriteIsNotTaken(t *testing.T) {
	path := t.TempDir()
	write(t, filepath.Join(path, lockName))
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "has mode 0777, which gives others access (chmod 0755)") {
		t.Errorf("%v", err)
	}
}

func TestWhatCannotBeADataDirectorySaysSo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file)
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}
