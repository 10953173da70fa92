// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

func TestRequirementsThatAreThereAreNotRepeated(t *testing.T) {
	const than = "module m\n\nrequire (\n\texample.com/a v1.0.0\n\texample.com/a/b v1.0.0 // indirect\n)\n"
	const more = "module n\n\ngo 1.26.0\n\nrequire example.com/c v1.2.0\n\nrequire (\n\texample.com/a v1.0.0\n\texample.com/d v0.0.0-2026 // indirect\n)\n\n" +
		"replace example.com/c => example.com/c v1.3.0\n"
	const want = "require example.com/c v1.2.0\nrequire example.com/d v0.0.0-2026\n"
	if got := string(requirements(more, than)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStraysAreEnded(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("EndStrays finds programs in /proc, which only Linux has")
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	stray := exec.Command(filepath.Join(work, "sleep"), "60")
	if err := os.WriteFile(stray.Path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	(&Builder{work: work}).EndStrays()
	if err := stray.Wait(); err == nil || stray.ProcessState.Success() {
		t.Errorf("it ended by itself: %v", err)
	}
}
