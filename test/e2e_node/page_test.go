// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2enode

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAgentPage verifies that the commands in docs/tasks/agent.md work as written, in a folder with
// the binaries in bin/, as after `make build`.
func TestAgentPage(t *testing.T) {
	t.Parallel()
	mustRunContainers(t)
	commands := agentBlock(t, "../../docs/tasks/agent.md")
	if len(commands) < 5 {
		t.Fatalf("%d commands in the page's block: is it marked as `sh agent`?", len(commands))
	}
	folder := t.TempDir()
	if err := os.Symlink(bin, filepath.Join(folder, "bin")); err != nil {
		t.Fatal(err)
	}
	script := "set -euo pipefail\nPATH=$PWD/bin:$PATH\nkubectl() { berth kubectl \"$@\"; }\nset -x\n" + strings.Join(commands, "\n")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script)
	shell.Dir = folder
	// The block ends the processes that it starts in the background. WaitDelay gives them time to
	// end.
	shell.WaitDelay = time.Minute
	out, err := shell.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(folder, "real.log"))
		t.Fatalf("%v\n%s\n--- real.log\n%s", err, out, log)
	}
}

// agentBlock returns the lines of the page's block marked `sh agent`.
func agentBlock(t *testing.T, file string) (commands []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inside := false
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		switch line := scanner.Text(); {
		case line == "```sh agent":
			inside = true
		case line == "```":
			inside = false
		case inside:
			commands = append(commands, line)
		}
	}
	return commands
}
