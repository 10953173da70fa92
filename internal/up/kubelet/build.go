// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

// FindOrBuild finds the kubelet, and builds a missing one if this executable is in Berth's source
// tree. out receives the build's output. named is the value of --kubelet; if it is empty,
// FindOrBuild searches.
func FindOrBuild(ctx context.Context, named string, out io.Writer) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this executable: %w", err)
	}
	return findOrBuild(ctx, named, self, out)
}

// findOrBuild is FindOrBuild for an executable at self.
func findOrBuild(ctx context.Context, named, self string, out io.Writer) (string, error) {
	program, missing := find(named, self)
	if missing == nil || named != "" {
		return program, missing
	}
	tree := sourceTree(self)
	if tree == "" {
		return "", missing
	}
	return build(ctx, tree, filepath.Dir(self), out)
}

// find returns the named executable, or the one next to self, or in PATH.
func find(named, self string) (string, error) {
	if named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("--kubelet: %w", err)
		}
		return filepath.Abs(path)
	}
	for _, candidate := range []string{filepath.Join(filepath.Dir(self), Program), Program} {
		if path, err := exec.LookPath(candidate); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("no kubelet beside %s nor in PATH: take it from the release's archive for Linux, "+
		"run `make build-node` in Berth's source tree, or name it with --kubelet", self)
}

var ownModule = regexp.MustCompile(`(?m)^module github\.com/berth-k8s/berth$`)

// sourceTree returns the source tree of an executable such as TREE/bin/berth, or "". It ignores the
// working directory: root would otherwise build and run files of anybody with write access there.
func sourceTree(self string) string {
	tree := filepath.Dir(filepath.Dir(self))
	text, err := os.ReadFile(filepath.Join(tree, "go.mod"))
	if err != nil || !ownModule.Match(text) {
		return ""
	}
	return tree
}

// build builds the kubelet into a folder.
func build(ctx context.Context, tree, bin string, out io.Writer) (string, error) {
	// Check for the tools first, so that the error contains a remedy rather than make's output.
	for _, tool := range []string{"make", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("no kubelet beside berth nor in PATH, and no %s in PATH to build it with: "+
				"run `make build-node` in %s as a user who has Go", tool, tree)
		}
	}
	make := exec.CommandContext(ctx, "make", "--no-print-directory", "-C", tree, "build-node", "BIN="+bin)
	make.Stdout, make.Stderr = out, out
	if err := make.Run(); err != nil {
		return "", fmt.Errorf("make build-node in %s: %w", tree, err)
	}
	return filepath.Join(bin, Program), nil
}
