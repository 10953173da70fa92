// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCommandsOfGoAndMakeExist verifies that the folders, tests and flags in the command lines of
// go and make exist, in blocks and within sentences of all pages. Most of these commands take
// minutes, so no test runs them verbatim.
func TestCommandsOfGoAndMakeExist(t *testing.T) {
	read := 0
	for _, page := range pages(t) {
		for _, line := range goAndMake(page) {
			read++
			if err := exists(line.Text); err != nil {
				t.Errorf("%s:%d: %s: %v", page.Path, line.Line, line.Text, err)
			}
		}
	}
	if read < 40 {
		t.Errorf("only %d command lines of go and make were found", read)
	}
}

func TestCommandsOfGoAndMakeThatDoNotExistAreFound(t *testing.T) {
	for _, row := range []struct{ line, want string }{
		{"go test ./internal/controller/nodehealth -run Partition -partition /tmp/partition.csv", ""},
		{"go test ./internal/controller/nodehealth -run Partitions", "no test or benchmark"},
		{"go test ./internal/controller/nodehealth -bench 'Nothing|None'", "no test or benchmark"},
		{"go test ./internal/controller/nodehealth -partitions x", "no flag -partitions"},
		{"go test ./nodesickness", "no folder"},
		{"cd test && go test ./e2e_ui -run Crowd -crowd.nodes 5000 -v", ""},
		{"cd downstream && go test .", "no folder"},
		{"cd test && go run ./cmd/nothing", "no folder"},
		{"make specs SPECFLAGS='--ginkgo.v'", ""},
		{"make nothing", "no target"},
		{"make specs FLAGS=1", "no variable FLAGS"},
	} {
		err := exists(row.line)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.line, err, row.want)
		}
	}
}

var goOrMake = regexp.MustCompile(`^(cd \S+ && )?(go (test|run|build) |make )`)

// goAndMake returns the command lines of go and make on a page.
func goAndMake(p *Page) (all []Command) {
	add := func(line int, text string) {
		if goOrMake.MatchString(text) {
			all = append(all, Command{line, text})
		}
	}
	for _, block := range p.Blocks {
		for _, command := range block.Commands() {
			add(command.Line, command.Text)
		}
		for i, line := range block.Lines {
			if block.Language == "sh" {
				add(block.Line+i, line)
			}
		}
	}
	for _, code := range p.Spans() {
		add(code.Line, code.Text)
	}
	return all
}

// exists checks the names in a command line. Without cd, the sentence may have named the module's
// folder earlier.
func exists(line string) error {
	if change, command, found := strings.Cut(line, " && "); found {
		return existsIn(filepath.Join(root, strings.TrimPrefix(change, "cd ")), command)
	}
	err := existsIn(root, line)
	for _, module := range []string{"test", "controlplane"} {
		if err != nil && existsIn(filepath.Join(root, module), line) == nil {
			return nil
		}
	}
	return err
}

func existsIn(folder, line string) error {
	if _, err := os.Stat(folder); err != nil {
		return fmt.Errorf("no folder %s", folder)
	}
	words := wordsOf(line)
	if words[0] == "make" {
		return targetsExist(words[1:])
	}
	return packagesExist(folder, words[2:])
}

// wordsOf splits a line of shell into words, without quotes and comment.
func wordsOf(line string) (all []string) {
	for _, word := range regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`).FindAllString(line, -1) {
		if strings.HasPrefix(word, "#") {
			break
		}
		all = append(all, strings.NewReplacer(`'`, "", `"`, "").Replace(word))
	}
	return all
}

func targetsExist(words []string) error {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return err
	}
	for _, word := range words {
		name, _, variable := strings.Cut(word, "=")
		switch {
		case variable && !strings.Contains(string(makefile), "$("+name+")"):
			return fmt.Errorf("the Makefile has no variable %s", name)
		case !variable && !strings.Contains(string(makefile), "\n"+name+":"):
			return fmt.Errorf("the Makefile has no target %s", name)
		}
	}
	return nil
}

var (
	// goFlags lists the flags of go itself; other flags belong to the test or program.
	goFlags  = []string{"v", "run", "bench", "benchtime", "timeout", "count", "race", "short", "p", "o"}
	testName = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`)
)

func packagesExist(folder string, args []string) error {
	var source strings.Builder
	for _, arg := range args {
		if strings.HasPrefix(arg, ".") {
			if err := readSource(&source, filepath.Join(folder, arg)); err != nil {
				return err
			}
		}
	}
	names := testName.FindAllStringSubmatch(source.String(), -1)
	matched, wanted := false, false
	for i, arg := range args {
		flag, isFlag := strings.CutPrefix(arg, "-")
		flag, value, inline := strings.Cut(flag, "=")
		switch {
		case !isFlag || flag == "": // the value of a flag, as in -run -
		case flag == "run", flag == "bench":
			if !inline && i+1 < len(args) {
				value = args[i+1]
			}
			pattern, err := regexp.Compile(strings.Split(value, "/")[0])
			if err != nil {
				return err
			}
			wanted = true
			matched = matched || slices.ContainsFunc(names, func(name []string) bool { return pattern.MatchString(name[1]) })
		case slices.Contains(goFlags, flag), strings.HasPrefix(flag, "rapid."):
		case !regexp.MustCompile(`\.\w+\((&[\w.]+, )?"` + regexp.QuoteMeta(flag) + `"`).MatchString(source.String()):
			return fmt.Errorf("no flag -%s is defined there", flag)
		}
	}
	if wanted && !matched {
		return fmt.Errorf("no test or benchmark there is of that name")
	}
	return nil
}

// readSource reads the Go files of a folder, and with /... those below it.
func readSource(into *strings.Builder, pattern string) error {
	folder, below := strings.CutSuffix(pattern, "...")
	folder = filepath.Clean(folder)
	if _, err := os.Stat(folder); err != nil {
		return fmt.Errorf("no folder %s", folder)
	}
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != folder && !below:
			return filepath.SkipDir
		case filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		into.Write(text)
		return err
	})
}
