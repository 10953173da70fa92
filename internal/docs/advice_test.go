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

// TestEveryAdviceIsFollowed verifies that each kind of change suggested by `berth explain` is in
// the table of docs/tasks/explain.md, and has a row in the live tables of test/e2e_explain, which
// carry it out as printed.
func TestEveryAdviceIsFollowed(t *testing.T) {
	table := source(t, "../../test/e2e_explain/advice_test.go") + source(t, "../../test/e2e_explain/advice_groups_test.go")
	followed := map[string]bool{}
	for _, row := range regexp.MustCompile(`kind: "([A-Za-z+]+)"`).FindAllStringSubmatch(table, -1) {
		for kind := range strings.SplitSeq(row[1], "+") {
			followed[kind] = true
		}
	}
	given := regexp.MustCompile(`(?:onPod\(|onNode\(|deletion\(|withClass\(|softenTerm\(|bindEdit\(|Change\{Kind: |GroupSuggestion\{Kind: |Kind: )"([A-Z][A-Za-z]+)"`)
	files, err := filepath.Glob("../inspect/explain/*.go")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, match := range given.FindAllStringSubmatch(source(t, file), -1) {
			kinds[match[1]] = true
		}
	}
	if len(kinds) < 25 {
		t.Fatalf("only %d kinds of advice were found: %v", len(kinds), kinds)
	}
	_, page, _ := strings.Cut(source(t, "../../docs/tasks/explain.md"), "### Every kind of advice")
	for kind := range kinds {
		if !strings.Contains(page, "`"+kind+"`") {
			t.Errorf("%s is not in the table of docs/tasks/explain.md", kind)
		}
		if !followed[kind] {
			t.Errorf("%s: no row of test/e2e_explain carries it out", kind)
		}
	}
}

func source(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
