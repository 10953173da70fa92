package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// notFollowed are the kinds of advice that TestEveryAdviceHelps does not carry out, and why. They
// are the advice of `berth explain podgroup`, which prints no command.
var notFollowed = map[string]string{
	"LowerMinCount":            "of a pod group: a PodGroup's spec cannot be changed, it is made anew",
	"RemoveTopologyConstraint": "of a pod group: a PodGroup's spec cannot be changed, it is made anew",
	"AddNodes":                 "of a pod group: the nodes are those of AddNode, which is carried out",
}

// TestEveryAdviceIsFollowed: each kind of change that `berth explain` suggests has a row in the
// live table of test/e2e_explain, in which it is carried out as it is printed.
func TestEveryAdviceIsFollowed(t *testing.T) {
	table := source(t, "../../test/e2e_explain/advice_test.go")
	followed := map[string]bool{}
	for _, row := range regexp.MustCompile(`kind: "([A-Za-z+]+)"`).FindAllStringSubmatch(table, -1) {
		for kind := range strings.SplitSeq(row[1], "+") {
			followed[kind] = true
		}
	}
	given := regexp.MustCompile(`(?:onPod\(|onNode\(|deletion\(|withClass\(|Change\{Kind: |GroupSuggestion\{Kind: |Kind: )"([A-Z][A-Za-z]+)"`)
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
	for kind := range kinds {
		switch _, known := notFollowed[kind]; {
		case !followed[kind] && !known:
			t.Errorf("%s: no row of test/e2e_explain/advice_test.go carries it out", kind)
		case followed[kind] && known:
			t.Errorf("%s is carried out: it need not be listed here", kind)
		}
	}
	for kind := range notFollowed {
		if !kinds[kind] {
			t.Errorf("%s is advised by nobody", kind)
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
