// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// tagged is the image that the pages' commands build and push.
const tagged = registry + "/team/berth:v0.1.0"

// block is a block of commands on a page.
type block struct{ heading, text string }

// page returns the blocks of a page that run on a cluster: those marked sh and sh real.
func (c *cluster) page(name string) (blocks []block) {
	c.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/tasks", name))
	c.must(err)
	heading, inside := "", false
	var lines []string
	for line := range strings.Lines(string(text)) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case inside && line == "```":
			inside = false
			blocks = append(blocks, block{heading, strings.Join(lines, "\n")})
		case inside:
			lines = append(lines, line)
		case line == "```sh" || line == "```sh real":
			inside, lines = true, nil
		case strings.HasPrefix(line, "## "):
			heading = strings.TrimPrefix(line, "## ")
		}
	}
	return blocks
}

// run runs the blocks below a heading, or all blocks with "". It changes only the page's
// assignment of the image.
func (c *cluster) run(blocks []block, heading string) {
	c.Helper()
	found := false
	for _, b := range blocks {
		if heading == "" || b.heading == heading {
			found = true
			c.Logf("%s", c.shell(b.text))
		}
	}
	if !found {
		c.Fatalf("no block of commands below the heading %q", heading)
	}
}

var assignment = regexp.MustCompile(`(?m)^IMG=REGISTRY\S+`)

// shell runs commands in the source tree.
func (c *cluster) shell(commands string) string {
	c.Helper()
	script := "set -euo pipefail\nIMG=" + tagged + "\nkubectl() { berth kubectl \"$@\"; }\nset -x\n" + assignment.ReplaceAllString(commands, "IMG="+tagged)
	ctx, cancel := context.WithTimeout(c.Context(), pageLimit)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
	shell.WaitDelay = 10 * time.Second
	shell.Dir = "../.."
	shell.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "KUBECTL=berth kubectl", "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := shell.CombinedOutput()
	if err != nil {
		c.Fatalf("%v\n%s\n%s", err, out, c.state())
	}
	return string(out)
}

const pageLimit = 8 * time.Minute

// state describes the pods, for a failed test.
func (c *cluster) state() string {
	out, _ := c.try("", "get", "nodes,pods,leases", "-A", "-o", "wide")
	events, _ := c.try("", "get", "events", "-A", "--field-selector", "type=Warning")
	return out + events
}
