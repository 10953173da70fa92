// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package binaries finds the programs that live tests run, or builds them.
package binaries

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Kubernetes is the version that the API server reports: it is linked into the binary, and Helm,
// for one, compares it with what a chart requires.
const Kubernetes = rules.Kubernetes

// environment is as it was before tests hid the user's home, in which Go keeps its caches. Programs
// are static, so that they can be packed into an image.
var environment = append(os.Environ(), "CGO_ENABLED=0")

// BuildIn returns the folder of berth and berth-controlplane: the folder in BERTH_BIN, or else they
// are built into work. root is the tree's, seen from the test.
func BuildIn(work, root string) (string, error) {
	if dir := os.Getenv("BERTH_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	return work, build(work, root, "build")
}

// WithKubelet is In, with the kubelet next to them.
func WithKubelet(work, root string) (string, error) {
	bin, err := BuildIn(work, root)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(bin, "kubelet")); err == nil {
		return bin, nil
	}
	return bin, build(bin, root, "build-node")
}

// build makes a target of the Makefile in a folder. Its flags are the flags of all other builds:
// with others Kubernetes would be compiled once more, for ten minutes of CPU time.
func build(bin, root, target string) error {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	cmd := exec.Command("make", "--no-print-directory", "-C", root, target, "BIN="+bin)
	cmd.Env = environment
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make %s: %w\n%s", target, err, out)
	}
	return nil
}

// Of returns the folder of the programs of another version: the named one, or the folder where the
// programs of a revision of this repository are built, below the user's cache. What was built
// before is used again.
func Of(version, root string) (string, error) {
	if info, err := os.Stat(version); err == nil && info.IsDir() {
		return filepath.Abs(version)
	}
	git := exec.Command("git", "rev-parse", "--verify", "--quiet", version+"^{commit}")
	git.Dir = root
	named, err := git.Output()
	if err != nil {
		return "", fmt.Errorf("%s is no folder and no revision: %w", version, err)
	}
	commit := strings.TrimSpace(string(named))
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	tree := filepath.Join(cache, "berth-revisions", commit)
	bin := filepath.Join(tree, "bin")
	if _, err := os.Stat(filepath.Join(tree, "built")); err == nil {
		return bin, nil
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return "", err
	}
	// The tree comes without its history, so its version is passed to it.
	script := `set -eo pipefail; git archive "$1" | tar -x -C "$2"; make -C "$2" build VERSION="${1:0:12}"; touch "$2/built"`
	build := exec.Command("bash", "-c", script, "bash", commit, tree)
	build.Dir, build.Env = root, environment
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", version, err, out)
	}
	return bin, nil
}

// Image packs the berth and berth-scheduler of a folder into an OCI tar file, as `make image` does.
// berth-scheduler is built where only berth is there.
func Image(bin, root, reference, file string) error {
	if _, err := os.Stat(filepath.Join(bin, "berth-scheduler")); err != nil {
		if err := run(root, "build", "-o", bin+string(filepath.Separator), "./cmd/berth-scheduler"); err != nil {
			return err
		}
	}
	return run(filepath.Join(root, "deploy/pack"), "run", "./cmd/image", "-binaries", bin, "-image", reference,
		"-version", reference, "-o", file)
}

// Chart makes the chart as a release of that version has it, in a folder, and returns its file.
func Chart(root, version, folder string) (string, error) {
	cmd := exec.Command("go", "run", "./cmd/release", "-chart", "-version", version, "-o", folder)
	cmd.Dir, cmd.Env = filepath.Join(root, "deploy/pack"), environment
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("making the chart: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Helm returns the helm command of the version that deploy/pack requires; it is built if it is not
// in Go's build cache.
func Helm(root string) (string, error) {
	cmd := exec.Command("go", "tool", "-n", "helm")
	cmd.Dir, cmd.Env = filepath.Join(root, "deploy/pack"), environment
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("building helm: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// run has the go command do something in a folder.
func run(folder string, arguments ...string) error {
	cmd := exec.Command("go", arguments...)
	cmd.Dir, cmd.Env = folder, environment
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", arguments[len(arguments)-1], err, out)
	}
	return nil
}
