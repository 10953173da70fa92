// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Page is a page of the documentation.
type Page struct {
	Path  string // from the root of the tree, with slashes
	Lines []string
	// Blocks of code, in their order. All other lines are prose.
	Blocks []Block
}

// Block is a block of code on a page.
type Block struct {
	Language string // the first word behind the fence; empty if the block is indented
	Line     int    // of its first line, from 1
	Lines    []string
}

// Pages reads README.md and all pages below docs/.
func Pages(root string) ([]*Page, error) {
	paths := []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(path) == ".md" {
			paths = append(paths, path)
		}
		return err
	})

	if err != nil {
		return nil, err
	}
	var pages []*Page
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		pages = append(pages, Read(filepath.ToSlash(name), string(text)))
	}

	return pages, nil
}

// Read parses a page.
func Read(path, text string) *Page {
	p := &Page{Path: path, Lines: strings.Split(strings.TrimSuffix(text, "\n"), "\n")}
	for i := 0; i < len(p.Lines); i++ {
		fence, language := fenceOf(p.Lines[i])
		switch {
		case fence != "":
			block := Block{Language: language, Line: i + 2}
			for i++; i < len(p.Lines) && !closes(p.Lines[i], fence); i++ {
				block.Lines = append(block.Lines, p.Lines[i])
			}
			p.Blocks = append(p.Blocks, block)
		case indented(p.Lines[i]) && (i == 0 || strings.TrimSpace(p.Lines[i-1]) == ""):
			block := Block{Line: i + 1}
			for ; i < len(p.Lines) && indented(p.Lines[i]); i++ {
				block.Lines = append(block.Lines, strings.TrimPrefix(p.Lines[i], "    "))
			}
			p.Blocks = append(p.Blocks, block)
			i--
		}
	}

	return p
}

// NamesCluster reports whether the page names its clusters in a line **Cluster:**. test/e2e_deploy
// runs the scripts of these pages. test/e2e runs the scripts of all other pages, on the cluster of
// `berth up`.
func (p *Page) NamesCluster() bool {
	return slices.ContainsFunc(p.Lines, func(line string) bool { return strings.HasPrefix(line, "**Cluster:** ") })
}

// fenceOf returns a block's opening fence and language.
func fenceOf(line string) (fence, language string) {
	line = strings.TrimLeft(line, " ")
	rest := strings.TrimLeft(line, "`")
	if len(line)-len(rest) < 3 || strings.Contains(rest, "`") {
		return "", ""
	}
	if words := strings.Fields(rest); len(words) > 0 {
		language = words[0]
	}
	return line[:len(line)-len(rest)], language
}

func closes(line, fence string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, fence) && strings.Trim(line, "`") == ""
}

func indented(line string) bool {
	return strings.HasPrefix(line, "    ") && strings.TrimSpace(line) != ""
}

// Prose returns the page's lines with the code blanked out, so that lines keep their numbers.
func (p *Page) Prose() []string {
	prose := append([]string(nil), p.Lines...)
	for _, block := range p.Blocks {
		for i := range block.Lines {
			prose[block.Line-1+i] = ""
		}
	}
	return prose
}
