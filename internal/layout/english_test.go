// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Bounds of the constructions per 1,000 lines. Karpenter has 57 of them, kube-scheduler 46.
const (
	mostInFolder = 130 // of the comments of a folder with at least fewLines
	mostInAll    = 90  // of all comments
	mostInPublic = 60  // of the comments of commands, and of packages for other modules
	mostInDocs   = 90  // of docs and README
	fewLines     = 50
)

// TestEnglishIsIdiomatic bounds the density of constructions that are correct, but too frequent in
// translated text. `make english` forbids others.
func TestEnglishIsIdiomatic(t *testing.T) {
	re := constructions(t)
	folders := map[string]density{}
	var all, public, docs density
	for _, path := range goFiles(t) {
		folder := relative(t, filepath.Dir(path))
		d := densityOf(re, paragraphs(t, path, commentLine))
		folders[folder] = folders[folder].plus(d)
		all = all.plus(d)
		if top, _, _ := strings.Cut(folder, "/"); top == "cmd" || top == "scheduler" || top == "controlplane" || top == "deploy" {
			public = public.plus(d)
		}
	}
	for _, path := range pages(t) {
		docs = docs.plus(densityOf(re, paragraphs(t, path, proseLine())))
	}

	check := func(what string, is density, most int) {
		if is.lines >= fewLines && is.inThousand() > most {
			t.Errorf("%s: %d constructions in 1,000 lines, at most %d are allowed: see CONTRIBUTING.md, English", what, is.inThousand(), most)
		}
	}
	for folder, d := range folders {
		check(folder, d, mostInFolder)
	}
	check("all comments", all, mostInAll)
	check("comments of commands and public packages", public, mostInPublic)
	check("docs and README", docs, mostInDocs)
	t.Logf("in 1,000 lines: %d in comments, %d in public ones, %d in docs", all.inThousand(), public.inThousand(), docs.inThousand())
}

// constructions matches the tokens of all Vale rules of level suggestion.
func constructions(t *testing.T) *regexp.Regexp {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "hack/vale/styles/Berth/*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var tokens []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rule struct {
			Level  string
			Tokens []string
		}
		if err := yaml.Unmarshal(text, &rule); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if rule.Level == "suggestion" {
			tokens = append(tokens, rule.Tokens...)
		}
	}
	if len(tokens) < 10 {
		t.Fatalf("only %d tokens found", len(tokens))
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(tokens, "|") + `)\b`)
}

type density struct{ lines, found int }

func (d density) plus(o density) density { return density{d.lines + o.lines, d.found + o.found} }
func (d density) inThousand() int        { return 1000 * d.found / max(1, d.lines) }

func densityOf(re *regexp.Regexp, paragraphs [][]string) (d density) {
	for _, lines := range paragraphs {
		d.lines += len(lines)
		d.found += len(re.FindAllString(strings.Join(lines, " "), -1))
	}
	return d
}

// paragraphs returns the runs of prose lines of a file.
func paragraphs(t *testing.T, path string, prose func(line string) (text string, ok bool)) (list [][]string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var run []string
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		if text, ok := prose(strings.TrimSpace(scanner.Text())); ok {
			run = append(run, text)
			continue
		}
		list, run = append(list, run), nil
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	return append(list, run)
}

// directive matches the beginning of comments for tools, and of the license header.
var directive = regexp.MustCompile(`^(go:|\+|nolint|Code generated| Copyright The | SPDX-)`)

// commentLine accepts comments on lines of their own.
func commentLine(line string) (string, bool) {
	text, ok := strings.CutPrefix(line, "//")
	return strings.TrimSpace(text), ok && !directive.MatchString(text)
}

// proseLine accepts the lines of a Markdown page outside of code blocks.
func proseLine() func(string) (string, bool) {
	code := false
	return func(line string) (string, bool) {
		fence := strings.HasPrefix(line, "```")
		code = code != fence
		return line, line != "" && !fence && !code
	}
}

// pages lists README and the pages of docs.
func pages(t *testing.T) []string {
	t.Helper()
	list := []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			list = append(list, path)
		}
		return err
	})
	if err != nil || len(list) < 50 {
		t.Fatalf("%d pages found: %v", len(list), err)
	}
	return list
}

func relative(t *testing.T, path string) string {
	t.Helper()
	rel, err := filepath.Rel(root, path)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.ToSlash(rel)
}
