// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// core is a package with mutations.
type core struct {
	name    string
	files   map[string]string // contents of the files to mutate
	tests   [][]string        // packages with the arguments of their test binaries
	mutants []*mutant
}

// mutant is a mutation.
type mutant struct {
	name          string // CORE/NAME
	notes         string // in brackets: the reverted fix, and the mark of survivors
	survives      bool   // no test is known to kill it
	file, content string // the mutated file; "" for no mutation
	count         int    // occurrences of the text to replace
}

// readList parses mutations.txt, whose format is described there, and applies each mutation to the
// files of the tree.
func readList(text, root string) (cores []*core, err error) {
	var c *core
	var m *mutant
	var before, after []string
	for i, line := range append(strings.Split(text, "\n"), "") {
		word, rest, _ := strings.Cut(line, " ")
		fields := strings.Fields(rest)
		if len(after) > 0 && word != "+" { // a replacement is complete; of several, the first that applies counts
			if m.count == 0 {
				c.apply(m, strings.Join(before, "\n"), strings.Join(after, "\n"))
			}
			before, after = nil, nil
		}
		switch {
		case line == "" || line[0] == '#':
		case word == "core":
			c = &core{name: fields[0], files: map[string]string{}}
			cores = append(cores, c)
			for _, folder := range fields[1:] {
				if err := c.readFiles(filepath.Join(root, folder)); err != nil {
					return nil, err
				}
			}
		case word == "test":
			c.tests = append(c.tests, fields)
		case word == "mutation":
			m = &mutant{name: c.name + "/" + fields[0]}
			for _, field := range fields[1:] { // reverts=NUMBER or survives
				m.notes += " (" + field + ")"
				m.survives = m.survives || field == "survives"
			}
			c.mutants = append(c.mutants, m)
		case word == "-":
			before = append(before, rest)
		case word == "+":
			after = append(after, rest)
		default:
			return nil, fmt.Errorf("mutations.txt:%d: unexpected line %q", i+1, line)
		}
	}

	for _, c := range cores {
		for _, m := range c.mutants {
			if m.count != 1 {
				err = errors.Join(err, fmt.Errorf("%s: the text to replace occurs %d times, expected once", m.name, m.count))
			}
		}
	}
	return cores, err
}

// readFiles adds the Go files of a folder to those of the core, without tests.
func (c *core) readFiles(folder string) error {
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	for _, path := range paths {
		content, failed := os.ReadFile(path)
		if err = cmp.Or(err, failed); !strings.HasSuffix(path, "_test.go") {
			c.files[path] = string(content)
		}
	}
	return err
}

// apply replaces a text in the files of the core, and counts its occurrences.
func (c *core) apply(m *mutant, before, after string) {
	for path, content := range c.files {
		if n := strings.Count(content, before); n > 0 {
			m.count += n
			m.file, m.content = path, strings.Replace(content, before, after, 1)
		}
	}
}
