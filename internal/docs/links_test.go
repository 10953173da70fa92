// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	// link is [text](target) or ![text](target); the text may be an image itself.
	link      = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	reference = regexp.MustCompile(`^ {0,3}\[[^\]^]+\]:\s+<?(\S+?)>?(?:\s|$)`)
	attribute = regexp.MustCompile(`<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)="([^"]+)"`)
	anchor    = regexp.MustCompile(`<a\b[^>]*?\b(?:id|name)="([^"]+)"`)
	heading   = regexp.MustCompile(`^ {0,3}#{1,6}\s+(.*?)(?:\s+#+)?\s*$`)
	inline    = regexp.MustCompile("`[^`]*`")
	target    = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	absolute  = regexp.MustCompile(`^(?:[a-z][a-z0-9+.-]*:|//)`)
)

// TestEveryLinkLeadsSomewhere verifies that the targets of links and pictures within the tree
// exist, including the headings in links. It includes pages at the root, such as GOVERNANCE.md.
func TestEveryLinkLeadsSomewhere(t *testing.T) {
	all := pages(t)
	atRoot, err := filepath.Glob(filepath.Join(root, "[A-Z]*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range atRoot {
		if name := filepath.Base(path); name != "README.md" {
			all = append(all, Read(name, source(t, path)))
		}
	}
	anchors := map[string][]string{}
	for _, p := range all {
		anchors[p.Path] = anchorsOf(p)
	}
	followed := 0
	for _, p := range all {
		for _, l := range linksOf(p) {
			if absolute.MatchString(l.target) {
				continue
			}
			followed++
			if err := follow(p, l.target, anchors); err != nil {
				t.Errorf("%s:%d: %s: %v", p.Path, l.line, l.target, err)
			}
		}
	}
	if followed < 50 {
		t.Errorf("only %d links were found", followed)
	}
}

func TestLinksAndHeadingsAreFound(t *testing.T) {
	p := Read("docs/p.md", strings.Join([]string{
		"# The `berth up` command: what's *there*?", "", "See [a](a.md#b), [![pic](x.png)](y.md \"title\") and `[no](no.md)`.",
		"## One", "## One", "[ref]: there.md", `<img alt="" src="z.svg">`, "```sh", "# no heading, [no](no.md)", "```", `<a id="here"></a>`, "## [Linked](q.md) to: A_b-c",
	}, "\n"))
	if got, want := fmt.Sprint(linksOf(p)), "[{3 a.md#b} {3 x.png} {3 y.md} {6 there.md} {7 z.svg} {12 q.md}]"; got != want {
		t.Errorf("links %s, want %s", got, want)
	}
	want := []string{"the-berth-up-command-whats-there", "one", "one-1", "here", "linked-to-a_b-c"}
	if got := anchorsOf(p); !slices.Equal(got, want) {
		t.Errorf("anchors %q, want %q", got, want)
	}
	anchors := map[string][]string{"docs/p.md": want, "README.md": {"berth"}}
	for target, broken := range map[string]bool{
		"#one-1": false, "#two": true, "../README.md#berth": false, "../README.md#birth": true, "none.md": true, "../docs": false, "../..": true,
		"../go.mod": false, "../GO.MOD": true,
	} {
		if err := follow(p, target, anchors); (err != nil) != broken {
			t.Errorf("%s: %v", target, err)
		}
	}
}

type located struct {
	line   int
	target string
}

func linksOf(p *Page) (all []located) {
	for i, line := range p.Prose() {
		line = inline.ReplaceAllString(line, "")
		for _, pattern := range []*regexp.Regexp{link, reference, attribute} {
			for _, match := range pattern.FindAllStringSubmatch(line, -1) {
				all = append(all, located{i + 1, match[1]})
			}
		}
	}
	return all
}

// anchorsOf returns the anchors of a page: GitHub's for its headings, and explicit ones.
func anchorsOf(p *Page) (all []string) {
	seen := map[string]int{}
	for _, line := range p.Prose() {
		for _, match := range anchor.FindAllStringSubmatch(line, -1) {
			all = append(all, match[1])
		}
		match := heading.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		slug := slugOf(target.ReplaceAllString(match[1], "$1"))
		n := seen[slug]
		seen[slug]++
		if n > 0 {
			slug = fmt.Sprintf("%s-%d", slug, n)
		}
		all = append(all, slug)
	}
	return all
}

func slugOf(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}

// follow returns the reason why the target of a link does not exist, or nil.
func follow(from *Page, target string, anchors map[string][]string) error {
	file, fragment, hasFragment := strings.Cut(target, "#")
	file, _, _ = strings.Cut(file, "?")
	to := from.Path
	if file != "" {
		to = path.Join(path.Dir(from.Path), file)
		if to == ".." || strings.HasPrefix(to, "../") || path.IsAbs(file) {
			return fmt.Errorf("leads out of the tree")
		}
		if !there(to) {
			return fmt.Errorf("there is no %s", to)
		}
	}
	if !hasFragment || path.Ext(to) != ".md" {
		return nil
	}
	known, read := anchors[to]
	if !read {
		text, err := os.ReadFile(filepath.Join(root, to))
		if err != nil {
			return err
		}
		known = anchorsOf(Read(to, string(text)))
	}
	if !slices.Contains(known, fragment) {
		return fmt.Errorf("%s has no heading #%s", to, fragment)
	}
	return nil
}

// there reports whether a file with exactly this name exists, even if the file system ignores case.
func there(name string) bool {
	if name == "." {
		return true
	}
	entries, err := os.ReadDir(filepath.Join(root, path.Dir(name)))
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == path.Base(name) })
}
