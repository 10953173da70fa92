// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// authorityPage lists every field read by Berth as an instruction, with its possible writers.
const authorityPage = "docs/reference/authority.md"

// ownKey matches keys of Berth's domain in code, including those with a constant prefix.
var ownKey = regexp.MustCompile(`"berth\.dev/([a-z-]+)"|\bprefix \+ "([a-z-]+)"`)

// noInstructions lists names in Berth's domain without effect: of components, and of fields of
// Berth's own documents.
var noInstructions = map[string]bool{"nodes": true, "level": true}

// TestEveryInstructionHasAnAuthor verifies that the page has every key of Berth's domain in the
// code, and that the tests it names exist.
func TestEveryInstructionHasAnAuthor(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, authorityPage))
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	for _, top := range []string{"internal", "scheduler", "cmd", "controlplane"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, found := range ownKey.FindAllStringSubmatch(string(text), -1) {
				name := found[1] + found[2]
				if found[2] != "" && !strings.Contains(path, filepath.Join("simnodes", "simkubelet")) {
					continue
				}
				keys++
				if !noInstructions[name] && !strings.Contains(string(page), "`berth.dev/"+name+"`") {
					t.Errorf("%s reads berth.dev/%s, which %s does not have", path, name, authorityPage)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if keys < 25 {
		t.Errorf("only %d keys were found", keys)
	}

	rows := 0
	for n, line := range strings.Split(string(page), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 4 || cells[0] == "field" || strings.HasPrefix(cells[0], "---") {
			continue
		}
		rows++
		words := quoted.FindAllStringSubmatch(cells[3], -1)
		if len(words) != 2 || !hasTest(t, words[0][1], words[1][1]) {
			t.Errorf("%s:%d: names no test that exists: %s", authorityPage, n+1, cells[3])
		}
	}
	if rows < 25 {
		t.Errorf("only %d rows were found", rows)
	}
}
