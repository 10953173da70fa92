// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestEveryCommandIsRun verifies that every command on a page is run by a test or listed in Unrun,
// and that Unrun has no entries without a command. test/e2e, e2e_deploy, e2e_node and
// e2e_real run the scripts (sh).
func TestEveryCommandIsRun(t *testing.T) {
	shown := map[int]bool{}
	for _, page := range pages(t) {
		for _, block := range page.Blocks {
			if fence := page.Fence(block); !slices.Contains(fences, fence) && apart[page.Path] != fence {
				t.Errorf("%s:%d: nothing runs or reads a block of %q: use one of %q", page.Path, block.Line-1, fence, fences)
			}
			commands := block.Commands()
			if block.Language == "console" && len(commands) == 0 {
				t.Errorf("%s:%d: nothing is typed on this console: begin a command with $, or # for root", page.Path, block.Line-1)
			}
			for _, command := range commands {
				switch i := page.entry(command); {
				case i >= 0:
					shown[i] = true
				case block.Language != "console":
					t.Errorf("%s:%d: %s: mark it as sh, which is run, or as console", page.Path, command.Line, command.Text)
				case untilCtrlC[page.Path] == "" || !strings.HasPrefix(command.Text, untilCtrlC[page.Path]):
					t.Errorf("%s:%d: %s: mark it as sh, which is run, or say in Unrun why it is not", page.Path, command.Line, command.Text)
				}
			}
		}
	}
	for i, u := range Unrun {
		if !shown[i] {
			t.Errorf("%s shows nothing any more that begins with %q", u.Page, u.Begins)
		}
	}
}

// apart lists the kinds of blocks that need real nodes, by page. test/e2e_node and test/e2e_real
// run them.
var apart = map[string]string{"docs/tasks/agent.md": "sh agent", "docs/tasks/install.md": "sh real"}

// fences lists the kinds of blocks that are run or read; an indented block has an empty fence.
var fences = []string{"", "sh", "console", "yaml", "json", "go", "text"}

// untilCtrlC lists commands that report readiness and keep running, by page. test/e2e runs them.
var untilCtrlC = map[string]string{"docs/tasks/ui.md": "berth ui", "docs/tasks/simulated-nodes.md": "berth nodes --count"}

func TestCommandsThatAreShownAreFound(t *testing.T) {
	page := Read("p.md", strings.Join([]string{
		"```console", "$ a b \\", "    --c", "says d", "# e", "```", "", "    berth f", "    says g", "    $ kubectl h", "", "```sh agent", "berth i", "```",
	}, "\n"))
	var got []string
	for _, block := range page.Blocks {
		got = append(got, fmt.Sprintf("%q %v", page.Fence(block), block.Commands()))
	}
	want := []string{`"console" [{2 a b --c} {5 e}]`, `"" [{8 berth f} {10 kubectl h}]`, `"sh agent" []`}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
