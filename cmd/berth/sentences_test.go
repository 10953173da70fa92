// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/docs"
)

// TestCommandsInSentencesExist verifies that the names and flags of berth commands within sentences
// on pages exist. The commands may lack arguments.
func TestCommandsInSentencesExist(t *testing.T) {
	neutral(t)
	pages, err := docs.Pages(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, page := range pages {
		for _, code := range page.Spans() {
			for _, line := range commandLines(docs.Block{Language: "sh", Lines: []string{code.Text}}) {
				if strings.ContainsAny(code.Text, "…|") {
					continue // abbreviated command, or alternatives
				}
				known, err := understood(line.words)
				if err != nil && !leftOut(err) {
					t.Errorf("%s:%d: `%s`: %v", page.Path, code.Line, code.Text, err)
				}
				if known {
					read++
				}
			}
		}
	}
	if read < 50 {
		t.Errorf("only %d commands were found", read)
	}
}

// inMessage matches a command within a message or a comment.
var inMessage = regexp.MustCompile("`(berth [a-z][^`\"]*)`")

// TestCommandsInMessagesExist verifies that the commands in messages and comments of the code
// exist.
func TestCommandsInMessagesExist(t *testing.T) {
	neutral(t)
	read := 0
	for _, dir := range []string{"cmd", "internal", "scheduler", "deploy", "controlplane"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, found := range inMessage.FindAllStringSubmatch(string(text), -1) {
				for _, line := range commandLines(docs.Block{Language: "sh", Lines: found[1:]}) {
					if _, err := understood(line.words); err != nil && !leftOut(err) {
						t.Errorf("%s: `%s`: %v", path, found[1], err)
					}
					read++
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if read < 20 {
		t.Errorf("only %d commands were found", read)
	}
}

// leftOut reports whether a missing argument is the only error. A request for help is not an error.
func leftOut(err error) bool {
	for _, words := range []string{"no operation", "flag needs an argument", ": write ", "help requested", "specify what to explain",
		"name the folder", "no report specified"} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}
