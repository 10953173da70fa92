// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const makefile = "build-node:\n\t@echo building; printf '#!' > $(BIN)/kubelet; chmod +x $(BIN)/kubelet\n"

// TestKubeletIsBuiltInASourceTree verifies that a berth in a source tree with Go builds the kubelet
// next to itself, once. Elsewhere the error explains where to get one.
func TestKubeletIsBuiltInASourceTree(t *testing.T) {
	tools := t.TempDir() // has no kubelet
	for _, name := range []string{"make", "chmod"} {
		link(t, tools, name)
	}
	t.Setenv("PATH", tools)
	tree, elsewhere := t.TempDir(), t.TempDir()
	write(t, filepath.Join(tree, "go.mod"), "module github.com/berth-k8s/berth\n\ngo 1.26\n")
	write(t, filepath.Join(tree, "Makefile"), makefile)
	write(t, filepath.Join(elsewhere, "go.mod"), "module example.com/other\n")
	write(t, filepath.Join(elsewhere, "Makefile"), makefile)
	berth := write(t, filepath.Join(tree, "bin", "berth"), "")
	other := write(t, filepath.Join(elsewhere, "bin", "berth"), "")

	var printed strings.Builder
	refused := func(named, self, want string) {
		t.Helper()
		if _, err := findOrBuild(t.Context(), named, self, &printed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q beside %s: %v, want %s", named, self, err, want)
		}
	}
	refused("", other, "run `make build-node` in Berth's source tree")
	refused("/nowhere", berth, "--kubelet: ")
	refused("", berth, "no go in PATH to build it with: run `make build-node` in "+tree)
	if printed.Len() > 0 {
		t.Errorf("something was built: %s", &printed)
	}

	if err := os.Chmod(write(t, filepath.Join(tools, "go"), ""), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		program, err := findOrBuild(t.Context(), "", berth, &printed)
		if want := filepath.Join(tree, "bin", Program); err != nil || program != want {
			t.Fatalf("%s (%v), want %s", program, err, want)
		}
	}
	if printed.String() != "building\n" {
		t.Errorf("printed %q", &printed)
	}

	write(t, filepath.Join(tree, "Makefile"), "build-node:\n\t@exit 3\n")
	if err := os.Remove(filepath.Join(tree, "bin", Program)); err != nil {
		t.Fatal(err)
	}
	refused("", berth, "make build-node in "+tree)
}

// link links a program of this machine into a folder.
func link(t *testing.T, folder, name string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		err = os.Symlink(path, filepath.Join(folder, name))
	}
	if err != nil {
		t.Fatal(err)
	}
}
