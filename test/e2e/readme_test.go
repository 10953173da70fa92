// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/docs"
)

// TestReadme verifies that the commands in the README work as written. It runs all blocks in order,
// in one shell, on a cluster as started by `make up`. It skips the block with the two make
// commands.
func TestReadme(t *testing.T) {
	t.Parallel()
	folder := readersFolder(t)
	blocks := shellBlocks(t, filepath.Join(root, "README.md"))
	if len(blocks) < 2 {
		t.Fatalf("only %d blocks of commands in the README: are they marked as sh?", len(blocks))
	}
	start(t, filepath.Join(folder, ".berth"))
	runs(t, folder, strings.Join(blocks, "\n"))
}

// root is the root of the source tree.
var root = filepath.Join("..", "..")

// readersFolder returns a folder with the files that the commands of pages use after `make build`.
// It is separate from the source tree, to keep the developer's cluster unchanged.
func readersFolder(t *testing.T) string {
	t.Helper()
	tree, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for link, to := range map[string]string{"bin": bin, "examples": filepath.Join(tree, "examples")} {
		if err := os.Symlink(to, filepath.Join(folder, link)); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// scriptLimit limits the time of a script.
const scriptLimit = 5 * time.Minute

// runs runs a script by a shell in a folder, and kills all processes that the script leaves behind.
func runs(t *testing.T, folder, script string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scriptLimit)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", "set -euo pipefail\n"+script)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
	shell.WaitDelay = 10 * time.Second
	shell.Dir = folder
	shell.Env = append(os.Environ(), env...)
	out, err := shell.CombinedOutput()
	_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// shellBlocks returns the blocks marked sh, converted by script.
func shellBlocks(t *testing.T, file string) (blocks []string) {
	t.Helper()
	page := docs.Read(file, string(read(t, file)))
	for _, block := range page.Blocks {
		if page.Fence(block) == "sh" {
			blocks = append(blocks, script(block))
		}
	}
	return blocks
}

// script returns a script that prints each line before running it, so that the output shows where
// it failed. A negated command (`! command`) that unexpectedly succeeds makes the script fail,
// although errexit ignores negated commands.
func script(block docs.Block) string {
	lines := []string{"set -x"}
	for _, line := range block.Lines {
		if strings.HasPrefix(line, "! ") {
			line += " || false"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestAScriptEndsWhenWhatMustFailDoesNot(t *testing.T) {
	for command, ends := range map[string]bool{"! false": false, "! true": true, "! echo a | grep b": false, "! echo a | grep a": true} {
		err := exec.Command("bash", "-c", "set -euo pipefail\n"+script(docs.Block{Lines: []string{command, "true"}})).Run()
		if (err != nil) != ends {
			t.Errorf("%s: %v", command, err)
		}
	}
}
