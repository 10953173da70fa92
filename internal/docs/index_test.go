// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// indexes lists the pages with an index of the pages in their folder and below.
var indexes = []string{"docs/design/decisions/README.md", "docs/README.md"}

// TestEveryPageIsInAnIndex verifies that docs/README.md links to each page, and the index of
// decisions to each decision.
func TestEveryPageIsInAnIndex(t *testing.T) {
	all := pages(t)
	listed := map[string][]string{}
	for _, p := range all {
		for _, passage := range passages(p) {
			if slices.Contains(indexes, p.Path) {
				listed[p.Path] = append(listed[p.Path], passage.links...)
			}
		}
	}
	for _, p := range all {
		if index := indexOf(p.Path); index != "" && !slices.Contains(listed[index], p.Path) {
			t.Errorf("%s does not list %s", index, p.Path)
		}
	}
}

// indexOf returns the index with a page: the first one above it.
func indexOf(page string) string {
	i := slices.IndexFunc(indexes, func(index string) bool { return page != index && strings.HasPrefix(page, path.Dir(index)+"/") })
	if i < 0 {
		return ""
	}
	return indexes[i]
}

const (
	glossary  = "docs/reference/glossary.md"
	mostTerms = 15
)

// TestGlossaryIsShortAndUsed verifies that another page uses each term of the glossary. The terms
// of a single package are in its doc.go instead.
func TestGlossaryIsShortAndUsed(t *testing.T) {
	all := pages(t)
	at := slices.IndexFunc(all, func(p *Page) bool { return p.Path == glossary })
	var terms []string
	for _, line := range all[at].Lines {
		if strings.HasPrefix(line, "| **") {
			for _, match := range regexp.MustCompile(`\*\*([^*]+)\*\*`).FindAllStringSubmatch(cellsOf(line)[0], -1) {
				terms = append(terms, match[1])
			}
		}
	}
	if len(terms) == 0 || len(terms) > mostTerms {
		t.Errorf("%s has %d terms, and may have 1 to %d: %q", glossary, len(terms), mostTerms, terms)
	}
	for _, term := range terms {
		word := regexp.MustCompile(`(?i)\b` + strings.TrimSuffix(term, "y") + `(?:y|ies|s|es)?\b`)
		if !slices.ContainsFunc(all, func(p *Page) bool {
			return p.Path != glossary && word.MatchString(strings.Join(p.Prose(), "\n"))
		}) {
			t.Errorf("%s: no other page uses %q", glossary, term)
		}
	}
}
