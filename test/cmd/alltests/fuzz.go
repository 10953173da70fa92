// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// memory is the folder of an in-memory file system, used if it exists: some fuzzers write files and
// sync them thousands of times.
const memory = "/dev/shm"

var fuzzer = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// listFuzzers returns one command for each fuzzer below the root. The commands only generate new
// inputs: the tests of a fuzzer's package run its corpus.
func listFuzzers(o options) ([]command, error) {
	var environment []string
	if info, err := os.Stat(memory); err == nil && info.IsDir() {
		environment = []string{"TMPDIR=" + memory, "GOTMPDIR=" + os.TempDir()}
	}

	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return nil, err
	}

	var all []command
	err = filepath.WalkDir(o.root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && file != o.root {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, found := range fuzzer.FindAllSubmatch(text, -1) {
			folder := relativePath(o.root, filepath.Dir(file))
			c := goTest(folder, o.fuzzArguments(string(found[1]), filepath.Join(strings.TrimSpace(string(cache)), "fuzz"), folder)...)
			c.environment = environment
			all = append(all, c)
		}
		return nil
	})

	return all, err
}

// module is the path of the root module.
const module = "github.com/berth-k8s/berth"

// fuzzArguments returns the arguments of go test for one fuzzer. Inputs that reach new code are
// kept, and further inputs are derived from them. If o.wide is set, go test -fuzz instruments all
// packages: it recompiles the imports of the fuzzer's package, and inputs run several times slower.
// Otherwise only the fuzzer's own package is instrumented. The inputs are kept in the same folder
// in both cases.
func (o options) fuzzArguments(name, corpora, folder string) []string {
	name = "^" + name + "$"
	// The default -fuzztime is a number of inputs: on a busy machine, go test ends timed fuzzing
	// with a spurious "context deadline exceeded". Minimization is limited because it only helps
	// with a failing input.
	if o.wide {
		return []string{"-run", "^$", "-fuzz", name, "-fuzztime", o.fuzztime, "-fuzzminimizetime", "100x", "-parallel", "1"}
	}
	return []string{"-run", "^$", "-gcflags=-d=libfuzzer", "-timeout", "0", "-parallel", "1", ".", "-args",
		"-test.fuzz=" + name, "-test.fuzztime=" + o.fuzztime, "-test.fuzzminimizetime=100x",
		"-test.fuzzcachedir=" + filepath.Join(corpora, filepath.FromSlash(path.Join(module, filepath.ToSlash(folder))))}
}

func relativePath(root, path string) string {
	shorter, err := filepath.Rel(root, path)
	if err != nil {
		return path
	}
	return shorter
}
