// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// commentWidth is the maximum width of comments on their own lines, a tab counted as four.
// Preformatted comments, and directives, may be wider.
const commentWidth = 100

func TestCommentsKeepToOneWidth(t *testing.T) {
	for _, path := range goFiles(t) {
		widths(t, path)
	}
}

// goFiles lists the Go files of all modules.
func goFiles(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return fs.SkipDir
		case filepath.Ext(path) == ".go":
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 500 {
		t.Fatalf("only %d files found", len(files))
	}
	return files
}

// widths checks the widths of a file's comments. Text in strings is not a comment.
func widths(t *testing.T, path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s scanner.Scanner
	set := token.NewFileSet()
	s.Init(set.AddFile(path, -1, len(text)), text, nil, scanner.ScanComments)
	lines := strings.Split(string(text), "\n")
	for {
		pos, tok, comment := s.Scan()
		if tok == token.EOF {
			return
		}
		if tok != token.COMMENT || !strings.HasPrefix(comment, "// ") || strings.HasPrefix(comment, "//   ") {
			continue
		}
		at := set.Position(pos)
		line := lines[at.Line-1]
		if strings.TrimLeft(line[:at.Column-1], "\t") != "" {
			continue // after code
		}
		if width := utf8.RuneCountInString(comment) + 4*(at.Column-1); width > commentWidth {
			t.Errorf("%s:%d: the comment is %d columns wide, and should be %d at most", path, at.Line, width, commentWidth)
		}
	}
}
