// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateEnglish = flag.Bool("english", false, "write the densities of testdata/english.txt")

// constructions are rare in client-go, Pebble and the standard library, and make a reader stop:
// relative clauses instead of nouns, programs that speak, and words of translations.
// CONTRIBUTING.md, "Comments", shows what to write instead.
var constructions = []*regexp.Regexp{
	regexp.MustCompile(`\bwhat (is|was|are|were|has|have|had|it|its|they|their|a|an|the|no|one)\b`),
	regexp.MustCompile(`\b(is|are|was|were) (how|what|where|when|who|whether|that of|those|the ones?)\b`),
	regexp.MustCompile(`\b(one|ones|those|these|all|any|another|others) (that|who|of which|of whom|whose)\b`),
	regexp.MustCompile(`\b(nobody|somebody|everybody|anybody|whoever|others|no one|someone|who)\b`),
	regexp.MustCompile(`\b(pods?|nodes?|claims?|groups?|objects?|volumes?|members?|victims?|taints?|names?) (that|which) ` +
		`(is|are|was|were|has|have|had|do|does|it|they|a|the|no)\b`),
	regexp.MustCompile(`\b(is|are|was|were|has|have) (none|nothing|no)\b|\bnothing (is|was|has)\b|\bno \w+ (is|are|was|has) `),
	regexp.MustCompile(`\b(tells|tell|told|says|say|said|asks|ask|asked|answers|answered)\b`),
	regexp.MustCompile(`\b(anew|beside|besides|at once|in place of|under way|goes on|go on|went on|stands?|is left|are left|is gone|are gone|comes|come|came)\b`),
	regexp.MustCompile(`\b(of which|of whom|in which|for which|from which|to which|with which|on which|whose)\b`),
	regexp.MustCompile(`\b(has|have|had|is|are|was|were) to (be|\w+)\b`),
	regexp.MustCompile(`\bas (it|they|that|those|he|one|before|if|upstream|the api)( (is|are|was|were|has|have|do|does|did|comes?|stands?))?\b`),
	regexp.MustCompile(`, too\b|\balone\b|\bof (its|their|his|one's) own\b`),
}

// mostDense bounds the constructions in 1,000 lines of comments of folders absent from
// testdata/english.txt that have at least fewLines. Listed folders may only improve.
const (
	mostDense = 130
	fewLines  = 50
	noise     = 5  // a few lines more or fewer
	improved  = 40 // above which the list must follow
)

// TestCommentsAreIdiomatic counts constructions in the comments of each folder.
func TestCommentsAreIdiomatic(t *testing.T) {
	lines, found := map[string]int{}, map[string]int{}
	for _, path := range goFiles(t) {
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commentsOf(t, path) {
			lines[filepath.ToSlash(folder)] += c.lines
			for _, re := range constructions {
				found[filepath.ToSlash(folder)] += len(re.FindAllString(strings.ToLower(c.text), -1))
			}
		}
	}

	density := func(folder string) int { return 1000 * found[folder] / max(1, lines[folder]) }
	if *updateEnglish {
		writeDensities(t, lines, density)
		return
	}
	listed := readDensities(t)
	for _, folder := range slices.Sorted(maps.Keys(lines)) {
		bound, known := listed[folder]
		is := density(folder)
		switch {
		case known && is > bound+noise, !known && lines[folder] > fewLines && is > mostDense:
			t.Errorf("%s: %d constructions in 1,000 lines of comments, at most %d are allowed: see CONTRIBUTING.md, Comments",
				folder, is, cmp.Or(bound, mostDense))
		case known && is < bound-improved:
			t.Errorf("%s: %d constructions in 1,000 lines of comments, and the list has %d: go test ./internal/layout -run Idiomatic -english", folder, is, bound)
		}
	}
	for folder := range listed {
		if lines[folder] == 0 {
			t.Errorf("testdata/english.txt lists %s, which has no comments", folder)
		}
	}
}

// TestOldEnglishIsFound verifies that sentences of the old kind are counted, and good ones are not.
func TestOldEnglishIsFound(t *testing.T) {
	count := func(text string) (n int) {
		for _, re := range constructions {
			n += len(re.FindAllString(strings.ToLower(text), -1))
		}
		return n
	}
	for _, old := range []string{
		"flushEvery is how often the queue is searched for pods that have waited too long.",
		"provision is where a volume can be made.",
		"What a core has told others is known by nobody.",
		"A node that is gone is asked for anew, and at once.",
		"It has to be there beside the pods whose claims it keeps, too.",
	} {
		if count(old) == 0 {
			t.Errorf("not found: %s", old)
		}
	}
	for _, good := range []string{
		"flushEvery is the interval between scans for pods stuck in the unschedulable queue.",
		"provisionTopology holds the topologies available to the provisioner.",
		"requeueFailed requeues a pod after a failed attempt.",
		"A reader that fell behind must rescan the whole cluster.",
		"Berth searches all nodes and preempts the fewest, lowest-priority pods.",
	} {
		if n := count(good); n > 0 {
			t.Errorf("%d found in: %s", n, good)
		}
	}
}

type comment struct {
	text  string
	lines int
}

// directive begins comments for tools, and the lines of header.
var directive = regexp.MustCompile(`^(go:|\+|nolint|Code generated| Copyright The | SPDX-)`)

// commentsOf returns the comments of a file on lines of their own, each block as one text.
func commentsOf(t *testing.T, path string) (list []comment) {
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var c comment
	end := func() {
		if c.lines > 0 {
			list = append(list, c)
		}
		c = comment{}
	}
	in := bufio.NewScanner(file)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		text, ok := strings.CutPrefix(strings.TrimSpace(in.Text()), "//")
		if !ok || directive.MatchString(text) {
			end()
			continue
		}
		c.text, c.lines = strings.TrimSpace(c.text+" "+strings.TrimSpace(text)), c.lines+1
	}
	end()
	return list
}

const densitiesFile = "testdata/english.txt"

func readDensities(t *testing.T) map[string]int {
	text, err := os.ReadFile(densitiesFile)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var density int
		var folder string
		if _, err := fmt.Sscan(line, &density, &folder); err != nil {
			t.Fatalf("%s: %q: %v", densitiesFile, line, err)
		}
		listed[folder] = density
	}
	return listed
}

// writeDensities lists the folders above mostDense. A density that was listed never rises.
func writeDensities(t *testing.T, lines map[string]int, density func(string) int) {
	before := readDensities(t)
	var b strings.Builder
	b.WriteString("# Constructions in 1,000 lines of comments, of folders whose comments are still to be rewritten. The numbers only fall.\n")
	for _, folder := range slices.Sorted(maps.Keys(lines)) {
		is := density(folder)
		if old, ok := before[folder]; ok {
			is = min(is, old)
		}
		if lines[folder] > fewLines && is > mostDense {
			fmt.Fprintf(&b, "%d %s\n", is, folder)
		}
	}
	if err := os.WriteFile(densitiesFile, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}
