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

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestTheThreatModelNamesTestsThatThereAre: every claim of the tables names a test, in the package
// whose folder stands before it, and it is there.
func TestTheThreatModelNamesTestsThatThereAre(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "concepts", "threat-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines, claims := 0, false
	for n, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if !strings.HasPrefix(line, "| ") {
			claims = false
			continue
		}
		claims = claims || cells[0] == " claim"
		if !claims || cells[0] == " claim" || strings.HasPrefix(cells[0], " ---") {
			continue
		}
		if len(cells) != 2 {
			t.Errorf("docs/concepts/threat-model.md:%d: has %d cells", n+1, len(cells))
			continue
		}
		lines++
		folder, named := "", 0
		for _, word := range quoted.FindAllStringSubmatch(cells[1], -1) {
			switch name := word[1]; {
			case !strings.HasPrefix(name, "Test"):
				folder = name
				if _, err := os.Stat(filepath.Join(root, name)); err != nil {
					t.Errorf("docs/concepts/threat-model.md:%d: there is no %s", n+1, name)
				}
			case !hasTest(t, folder, name):
				t.Errorf("docs/concepts/threat-model.md:%d: there is no %s in %q", n+1, name, folder)
			default:
				named++
			}
		}
		if named == 0 {
			t.Errorf("docs/concepts/threat-model.md:%d: names no test: %.60s", n+1, cells[0])
		}
	}
	if lines < 60 {
		t.Errorf("only %d lines were found", lines)
	}
}

func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range testFunc.FindAllStringSubmatch(string(text), -1) {
			if found[1] == name {
				return true
			}
		}
	}
	return false
}
