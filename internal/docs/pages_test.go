// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var root = filepath.Join("..", "..")

func pages(t *testing.T) []*Page {
	t.Helper()
	all, err := Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d pages were found", len(all))
	}
	return all
}

func TestAPageIsTakenApart(t *testing.T) {
	p := Read("p.md", "# A\n\n```yaml\na: 1\n\nb: 2\n```\n\n    $ ls\n    x\n\nend `x`\n- item\n\n  ````text more\n  ```\n  ````\n")
	want := []Block{
		{Language: "yaml", Line: 4, Lines: []string{"a: 1", "", "b: 2"}},
		{Line: 9, Lines: []string{"$ ls", "x"}},
		{Language: "text", Line: 16, Lines: []string{"  ```"}},
	}
	if len(p.Blocks) != len(want) {
		t.Fatalf("%d blocks: %+v", len(p.Blocks), p.Blocks)
	}
	for i, block := range p.Blocks {
		if block.Language != want[i].Language || block.Line != want[i].Line || len(block.Lines) != len(want[i].Lines) || block.Lines[0] != want[i].Lines[0] {
			t.Errorf("block %d is %+v, want %+v", i, block, want[i])
		}
	}
	if prose := p.Prose(); prose[3] != "" || prose[11] != "end `x`" {
		t.Errorf("prose: %q", prose)
	}
}

// longestCell is the maximum length of a table cell, in characters. Longer text belongs above or
// below the table.
const longestCell = 250

var cellBorder = regexp.MustCompile(`(?:^|[^\\])\|`)

// TestATableCellHoldsOneThought verifies that table cells are short, except on pages generated from
// the code.
func TestATableCellHoldsOneThought(t *testing.T) {
	cells := 0
	for _, p := range pages(t) {
		prose := p.Prose()
		if strings.Contains(strings.Join(prose, "\n"), "This page is made from the") {
			continue
		}
		for i, line := range prose {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			for _, cell := range cellBorder.Split(line, -1) {
				cells++
				if n := utf8.RuneCountInString(strings.TrimSpace(cell)); n >= longestCell {
					t.Errorf("%s:%d: a cell of %d characters: %s", p.Path, i+1, n, cell)
				}
			}
		}
	}
	if cells < 2000 {
		t.Errorf("only %d cells were found", cells)
	}
}
