package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadme runs every block of commands in the README as written, in their order, in one shell, beside a cluster as `make up`
// starts it. The block of the two make commands is the exception: what they run, this and all other tests do.
func TestReadme(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// A folder that looks like the tree after `make build`, so that a cluster of the developer's own is left alone.
	work := t.TempDir()
	for link, to := range map[string]string{"bin": bin, "demo": filepath.Join(root, "demo")} {
		if err := os.Symlink(to, filepath.Join(work, link)); err != nil {
			t.Fatal(err)
		}
	}
	blocks := shellBlocks(t, filepath.Join(root, "README.md"))
	if len(blocks) < 5 {
		t.Fatalf("only %d blocks of commands in the README: are they marked as sh?", len(blocks))
	}
	start(t, filepath.Join(work, ".berth"))
	script := "set -euo pipefail\n" + strings.Join(blocks, "\n")
	shell := exec.CommandContext(t.Context(), "bash", "-c", script)
	shell.Dir = work
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// shellBlocks returns the blocks marked as sh, each line echoed before it runs, so that a failure shows where.
func shellBlocks(t *testing.T, file string) (blocks []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var block []string
	inside := false
	for in := bufio.NewScanner(f); in.Scan(); {
		switch line := in.Text(); {
		case line == "```sh":
			inside, block = true, []string{"set -x"}
		case line == "```" && inside:
			inside = false
			blocks = append(blocks, strings.Join(block, "\n"))
		case inside:
			block = append(block, line)
		}
	}
	return blocks
}
