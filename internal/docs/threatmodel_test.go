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

// TestClaimsNameExistingTests verifies that every claim in the tables about attacks names an
// existing test, after the folder of its package.
func TestClaimsNameExistingTests(t *testing.T) {
	found := 0
	for _, page := range pages(t) {
		if strings.HasPrefix(page.Path, "docs/evidence/attacks-") {
			found += checkClaims(t, page)
		}
	}
	if found < 100 {
		t.Errorf("only %d claims were found", found)
	}
}

// checkClaims returns the number of claims on the page.
func checkClaims(t *testing.T, page *Page) (lines int) {
	t.Helper()
	claims := false
	for n, line := range page.Lines {
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
			t.Errorf("%s:%d: has %d cells", page.Path, n+1, len(cells))
			continue
		}
		lines++
		folder, named := "", 0
		for _, word := range quoted.FindAllStringSubmatch(cells[1], -1) {
			switch name := word[1]; {
			case !strings.HasPrefix(name, "Test"):
				folder = name
				if _, err := os.Stat(filepath.Join(root, name)); err != nil {
					t.Errorf("%s:%d: there is no %s", page.Path, n+1, name)
				}
			case !hasTest(t, folder, name):
				t.Errorf("%s:%d: there is no %s in %q", page.Path, n+1, name, folder)
			default:
				named++
			}
		}
		if named == 0 {
			t.Errorf("%s:%d: names no test: %.60s", page.Path, n+1, cells[0])
		}
	}
	return lines
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
