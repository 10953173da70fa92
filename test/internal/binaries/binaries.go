// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package binaries finds or builds the programs that live tests run.
package binaries

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Kubernetes is the version that the API server reports. It is linked into the binary, because
// clients such as Helm compare it with the version that a chart requires.
const Kubernetes = rules.Kubernetes

// environment is the environment for building programs. It has the value of HOME before tests
// change it, because Go's caches are in the user's home. Programs are linked statically, so that
// they can be packed into an image.
var environment = append(os.Environ(), "CGO_ENABLED=0")

// BuildIn returns a folder with berth and berth-controlplane: the folder named by BERTH_BIN or, if
// it is not set, the folder work, in which it builds them. root is the path of the source tree,
// relative to the test.
func BuildIn(work, root string) (string, error) {
	if dir := os.Getenv("BERTH_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	return work, build(work, root, "build")
}

// WithKubelet is like BuildIn, but the folder also contains the kubelet.
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

// build runs a target of the Makefile, with its output in a folder. The Makefile's flags are the
// flags of all other builds: with different flags, Kubernetes would be compiled again, which takes
// ten minutes of CPU time.
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

// Of returns a folder with the programs of another version. version is such a folder or a revision
// of this repository. A revision is built in the user's cache folder, unless it has been built
// there before.
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
	// Pass the version to make, because the archive has no git history.
	script := `set -eo pipefail; git archive "$1" | tar -x -C "$2"; make -C "$2" build VERSION="${1:0:12}"; touch "$2/built"`
	build := exec.Command("bash", "-c", script, "bash", commit, tree)
	build.Dir, build.Env = root, environment
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", version, err, out)
	}
	return bin, nil
}

// Image packs the programs berth and berth-scheduler in a folder into an OCI tar file, as `make
// image` does. It builds berth-scheduler if the folder does not contain it.
func Image(bin, root, reference, file string) error {
	if _, err := os.Stat(filepath.Join(bin, "berth-scheduler")); err != nil {
		if err := run(root, "build", "-o", bin+string(filepath.Separator), "./cmd/berth-scheduler"); err != nil {
			return err
		}
	}
	return run(filepath.Join(root, "deploy/pack"), "run", "./cmd/image", "-binaries", bin, "-image", reference,
		"-version", reference, "-o", file)
}

// Chart packages the Helm chart as for a release of the version, and returns the path of the file
// in folder.
func Chart(root, version, folder string) (string, error) {
	cmd := exec.Command("go", "run", "./cmd/release", "-chart", "-version", version, "-o", folder)
	cmd.Dir, cmd.Env = filepath.Join(root, "deploy/pack"), environment
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("making the chart: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Helm returns the path of the helm command in the version that deploy/pack requires. It is built
// if it is not in Go's build cache.
func Helm(root string) (string, error) {
	cmd := exec.Command("go", "tool", "-n", "helm")
	cmd.Dir, cmd.Env = filepath.Join(root, "deploy/pack"), environment
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("building helm: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// run runs the go command in a folder.
func run(folder string, arguments ...string) error {
	cmd := exec.Command("go", arguments...)
	cmd.Dir, cmd.Env = folder, environment
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", arguments[len(arguments)-1], err, out)
	}
	return nil
}
