package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// memory is a folder without a disk, where there is one: some fuzzers write files and sync them
// thousands of times.
const memory = "/dev/shm"

var fuzzer = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// fuzzers runs every fuzzer of the root module for a moment, on top of its corpus, which its
// package's tests go through.
func fuzzers(o options) ([]command, error) {
	var environment []string
	if info, err := os.Stat(memory); err == nil && info.IsDir() {
		environment = []string{"TMPDIR=" + memory, "GOTMPDIR=" + os.TempDir()}
	}
	var all []command
	err := filepath.WalkDir(o.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && path != o.root {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range fuzzer.FindAllSubmatch(text, -1) {
			// A number of inputs, not a time: go test ends timed fuzzing under load with a spurious
			// "context deadline exceeded". Making an input smaller is for one that fails.
			c := goTest(relative(o.root, filepath.Dir(path)), "-run", "^$", "-fuzz", "^"+string(found[1])+"$",
				"-fuzztime", o.fuzztime, "-fuzzminimizetime", "100x", "-parallel", "1")
			c.environment = environment
			all = append(all, c)
		}
		return nil
	})
	return all, err
}

func relative(root, path string) string {
	shorter, err := filepath.Rel(root, path)
	if err != nil {
		return path
	}
	return shorter
}
