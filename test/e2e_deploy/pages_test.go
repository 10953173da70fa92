// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/docs"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestPages verifies that the commands of the pages that name their cluster work as written. It
// runs the pages one after the other, each in a separate shell, on a cluster started by `berth up`.
// Each page must restore the cluster's state.
func TestPages(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	all, err := docs.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	for _, page := range all {
		if page.NamesCluster() {
			pages = append(pages, filepath.Join(root, page.Path))
		}
	}
	if len(pages) < 7 {
		t.Fatalf("pages: %v", pages)
	}
	work := t.TempDir()
	berthUp(t, filepath.Join(work, ".berth"))
	// Replacing kube-scheduler needs a control plane node.
	label := exec.Command(filepath.Join(bin, "berth"), "kubectl", "--data-dir", filepath.Join(work, ".berth"), "label", "node", "node-1", "node-role.kubernetes.io/control-plane=")
	if out, err := label.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, page := range pages {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			if slow := []string{"dedicated-nodes.md", "maintenance.md", "managed-clusters.md", "tainted-devices.md"}; slices.Contains(slow, filepath.Base(page)) {
				nightly.Only(t)
			}
			own := filepath.Join(work, filepath.Base(page))
			if err := os.Mkdir(own, 0o700); err != nil {
				t.Fatal(err)
			}
			// The folder has the files of the source tree, the reader's working directory, that
			// pages use.
			for _, link := range []string{"deploy", "integrations", "hack", "Makefile", "go.mod", ".berth"} {
				from := root
				if link == ".berth" {
					from = work
				}
				if err := os.Symlink(filepath.Join(from, link), filepath.Join(own, link)); err != nil {
					t.Fatal(err)
				}
			}
			blocks := shellBlocks(t, page)
			if len(blocks) == 0 {
				t.Fatal("no block of commands is marked as sh")
			}
			script := "set -euo pipefail\nkubectl() { berth kubectl \"$@\"; }\n" + strings.Join(blocks, "\n")
			ctx, cancel := context.WithTimeout(t.Context(), pageLimit)
			defer cancel()
			shell := exec.CommandContext(ctx, "bash", "-c", script)
			shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that the signal below also reaches the shell's children
			shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
			shell.Dir = own
			shell.Env = append(os.Environ(), "KUBECTL=berth kubectl", "PATH="+bin+":"+os.Getenv("PATH"))
			shell.WaitDelay = 10 * time.Second
			out, err := shell.CombinedOutput()
			_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) // kill the processes that a failed page left behind
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// pageLimit limits the time of a page. Pages take seconds.
const pageLimit = 3 * time.Minute

// berthUp starts `berth up` and waits until the cluster is ready. The cluster ends with the test.
func berthUp(t *testing.T, data string) {
	t.Helper()
	out := &text{}
	cmd := exec.Command(filepath.Join(bin, "berth"), "up", "--data-dir", data, "--nodes", "3")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			t.Error("berth up did not end within 30 s of SIGINT")
		}
		if t.Failed() {
			t.Logf("berth up said:\n%s", out)
		}
	})
	eventually(t, func() error {
		if len(ended) > 0 {
			t.Fatal("berth up has ended")
		}
		if !strings.Contains(out.String(), "Berth is up") {
			return errors.New("berth up does not say that it is up")
		}
		return nil
	})
}

// shellBlocks returns the blocks marked sh. The shell prints each line before running it, so that
// the output shows where a block failed.
func shellBlocks(t *testing.T, file string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var block []string
	inside := false
	for scanner := bufio.NewScanner(bytes.NewReader(text)); scanner.Scan(); {
		switch line := scanner.Text(); {
		case line == "```sh":
			inside, block = true, []string{"set -x"}
		case line == "```" && inside:
			inside = false
			blocks = append(blocks, strings.Join(block, "\n"))
		case inside && strings.HasPrefix(line, "! "):
			block = append(block, line+" || false") // set -e ignores the result of a negated command
		case inside:
			block = append(block, line)
		}
	}
	return blocks
}
