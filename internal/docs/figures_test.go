// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"maps"
	"math/bits"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// evidence is the folder of measurements; other pages quote them.
const evidence = "docs/evidence/"

// figure matches a number with a unit of measurement. Seconds and percentages count only with
// decimals: whole ones are settings and percentiles more often than results.
var figure = regexp.MustCompile(`(?:^|[^\w.,/-])(?:(\d[\d,]*(?:\.\d+)?) (ms|µs|MiB|GiB|MB|pods/s|pods per second)|(\d+\.\d+) (s|%))(?:\W|$)`)

// passage is a paragraph, a list item or a table row, with the pages to which it links.
type passage struct {
	line  int
	text  string
	links []string
}

var newPassage = regexp.MustCompile(`^\s*([-*]|\d+\.)\s|^[|#]`)

func passages(p *Page) (all []passage) {
	open := false
	for i, line := range p.Prose() {
		if strings.TrimSpace(line) == "" {
			open = false
			continue
		}
		if !open || newPassage.MatchString(line) {
			all = append(all, passage{line: i + 1})
			open = true
		}
		last := &all[len(all)-1]
		for _, match := range link.FindAllStringSubmatch(line, -1) {
			file, _, _ := strings.Cut(match[1], "#")
			last.links = append(last.links, path.Join(path.Dir(p.Path), file))
		}
		last.text += " " + strings.TrimSpace(link.ReplaceAllString(line, "]"))
	}
	return all
}

// figuresOf returns the numbers and units in a text. It omits powers of two, which are usually
// bounds.
func figuresOf(text string) (all [][2]string) {
	for _, match := range figure.FindAllStringSubmatch(text, -1) {
		number, unit := match[1]+match[3], strings.Replace(match[2]+match[4], "pods per second", "pods/s", 1)
		if n, err := strconv.ParseUint(number, 10, 64); err != nil || bits.OnesCount64(n) != 1 {
			all = append(all, [2]string{number, unit})
		}
	}
	return all
}

// distinctive reports whether a figure that occurs on two pages is hardly a coincidence: it has
// three digits or more, and does not end with two zeros.
func distinctive(f [2]string) bool {
	digits := strings.NewReplacer(",", "", ".", "").Replace(f[0])
	return len(digits) >= 3 && !strings.HasSuffix(digits, "00") && f[1] != "%" && f[1] != "s"
}

// figureProblems returns the figures that a passage quotes differently from the evidence to which
// it links, and the distinctive figures that are on several pages, none of which links to another
// of them.
func figureProblems(all []*Page) (problems []string) {
	texts := map[string]string{}
	for _, p := range all {
		texts[p.Path] = strings.Join(p.Prose(), "\n")
	}
	has := func(page, number string) bool {
		return regexp.MustCompile(`(?:^|[^\d.,])` + regexp.QuoteMeta(number) + `(?:\D|$)`).MatchString(texts[page])
	}
	sources := map[[2]string]map[string]int{} // by figure: the pages that contain it without linking to another page that does
	for _, p := range all {
		for _, passage := range passages(p) {
			quotes := slices.DeleteFunc(slices.Clone(passage.links), func(to string) bool { return to == p.Path || texts[to] == "" })
			measured := slices.ContainsFunc(quotes, func(to string) bool { return strings.HasPrefix(to, evidence) })
			for _, f := range figuresOf(passage.text) {
				found := slices.ContainsFunc(quotes, func(to string) bool { return has(to, f[0]) })
				switch {
				case found:
				case measured && !strings.HasPrefix(p.Path, evidence):
					problems = append(problems, fmt.Sprintf("%s:%d: %s %s is not on the page to which the passage links", p.Path, passage.line, f[0], f[1]))
				case distinctive(f):
					if sources[f] == nil {
						sources[f] = map[string]int{}
					}
					sources[f][p.Path] = passage.line
				}
			}
		}
	}
	for f, pages := range sources {
		if len(pages) > 1 {
			problems = append(problems, fmt.Sprintf("%s %s is on several pages, and none links to another one: %v", f[0], f[1], slices.Sorted(maps.Keys(pages))))
		}
	}
	slices.Sort(problems)
	return problems
}

// TestAFigureIsQuotedFromOnePage verifies that a measurement has one source: other pages that
// repeat it link to that page, and repeat it exactly. Pages generated from code have no
// measurements.
func TestAFigureIsQuotedFromOnePage(t *testing.T) {
	all := slices.DeleteFunc(pages(t), func(p *Page) bool {
		return slices.Contains([]string{"flags.md", "metrics.md", "configuration.md"}, path.Base(p.Path))
	})
	count := 0
	for _, p := range all {
		for _, passage := range passages(p) {
			count += len(figuresOf(passage.text))
		}
	}
	if count < 200 {
		t.Errorf("only %d figures were found", count)
	}
	for _, problem := range figureProblems(all) {
		t.Error(problem)
	}
}

func TestFiguresWithoutTheirSourceAreFound(t *testing.T) {
	source := "# A\n\n| plain | 1,425 pods/s | 111 MiB |\n\nIt took 0.83 s, and at most 64 MiB.\n"
	for _, row := range []struct{ text, want string }{
		{"It took [111 MiB](evidence/a.md) and 0.83 s.", ""},
		{"It binds 1,425 pods per second ([evidence](evidence/a.md)).", ""},
		{"It took [112 MiB](evidence/a.md).", "docs/p.md:1: 112 MiB is not on the page"},
		{"It paused for\n0.84 s ([evidence](evidence/a.md)).", "docs/p.md:1: 0.84 s is not on the page"},
		{"It took 111 MiB.", "111 MiB is on several pages"},
		{"The bound is 64 MiB, the period 10 s. It took 12 MiB.", ""},
	} {
		problems := figureProblems([]*Page{Read(evidence+"a.md", source), Read("docs/p.md", row.text)})
		if got := strings.Join(problems, "\n"); (got == "") != (row.want == "") || !strings.HasPrefix(got, row.want) {
			t.Errorf("%q: %q, want %q", row.text, got, row.want)
		}
	}
}
