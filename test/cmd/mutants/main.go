// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// mutants measures which faults the tests of the pure cores detect. It applies the mutations of
// mutations.txt one at a time and runs the tests of the mutated core. Each mutation stands for a
// fault of the core, and survives if all tests pass.
//
//	cd test && go run ./cmd/mutants -root .. [-only eviction/]
//
// The tree is not changed: the compiler receives mutated files by -overlay. The exit status is 1 if
// the text of a mutation does not occur exactly once, if tests fail without a mutation, or if an
// unmarked mutation survives.
package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed mutations.txt
var mutations string

// bench runs tests with mutations.
type bench struct {
	out             io.Writer
	root, temporary string
	seeds           []string
	least, limit    time.Duration   // of processor time; a test binary that exceeds the limit hangs
	built           map[string]bool // test binaries with the current mutation
}

// result is the outcome of the tests of a core.
type result struct {
	failed string        // tests; "" if the mutation survives
	took   time.Duration // processor time
}

func main() {
	root := flag.String("root", "..", "root of the tree to test")
	only := flag.String("only", "", "regular expression of the mutations to run, as CORE/NAME")
	seeds := flag.String("seeds", "1", "base seeds of random tests, which must fail under each of them")
	dry := flag.Bool("n", false, "only check that the text of every mutation occurs once")
	flag.Parse()
	b := bench{out: os.Stdout, root: *root, seeds: strings.Split(*seeds, ","), least: 30 * time.Second}
	if err := b.run(mutations, regexp.MustCompile(*only), *dry); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run runs the selected mutations of each core.
func (b *bench) run(list string, only *regexp.Regexp, dry bool) (err error) {
	if b.root, err = filepath.Abs(b.root); err != nil {
		return err
	}
	cores, err := readList(list, b.root)
	if err != nil || dry {
		return err
	}
	if b.temporary, err = os.MkdirTemp("", "mutants"); err != nil {
		return err
	}
	defer os.RemoveAll(b.temporary)

	unexpected := 0
	for _, c := range cores {
		c.mutants = slices.DeleteFunc(c.mutants, func(m *mutant) bool { return !only.MatchString(m.name) })
		if len(c.mutants) > 0 {
			count, err := b.runCore(c)
			if err != nil {
				return err
			}
			unexpected += count
		}
	}
	if unexpected > 0 {
		return fmt.Errorf("%d mutations survived that are not marked as surviving", unexpected)
	}
	return nil
}

// runCore runs the tests of a core without a mutation, and then with each of its mutations. It
// returns the number of unexpected survivors.
func (b *bench) runCore(c *core) (unexpected int, err error) {
	b.limit = time.Hour
	killed := 0
	for _, m := range append([]*mutant{{name: c.name + " without a mutation"}}, c.mutants...) {
		found, err := b.test(c, m)
		text := "killed"
		switch {
		case err != nil:
			return 0, fmt.Errorf("%s: %w", m.name, err)
		case m.file == "" && found.failed != "":
			return 0, fmt.Errorf("%s: %s fails", m.name, found.failed)
		case m.file == "": // a mutated run computes little more, unless it hangs
			b.limit, text = b.least+3*found.took, "passes"
		case found.failed != "":
			killed++
		case m.survives:
			text = "survived"
		default:
			text = "SURVIVED"
			unexpected++
		}
		fmt.Fprintf(b.out, "%-60s %-9s %6.1f s  %s\n", m.name+m.notes, text, found.took.Seconds(), cmp.Or(found.failed, "-"))
	}
	fmt.Fprintf(b.out, "%-60s %d of %d killed\n\n", c.name, killed, len(c.mutants))
	return unexpected, nil
}

// test runs the tests of a core with a mutation, until one fails. A test that depends on the base
// seed kills the mutation if it fails under every seed.
func (b *bench) test(c *core, m *mutant) (found result, err error) {
	b.built = map[string]bool{}
	for i, seed := range b.seeds {
		found.failed = ""
		for _, test := range c.tests {
			seeded := strings.Contains(strings.Join(test, " "), "{seed}")
			if i > 0 && !seeded || found.failed != "" {
				continue
			}
			binary := filepath.Join(b.temporary, filepath.Base(test[0])+".test")
			if err := b.compile(test[0], binary, m); err != nil {
				return found, err
			}
			failed, took := b.execute(binary, test, seed)
			found.failed, found.took = failed, found.took+took
			if failed != "" && !seeded {
				return found, nil
			}
		}
		if found.failed == "" {
			break
		}
	}
	return found, nil
}

// compile builds the test binary of a package, once per mutation.
func (b *bench) compile(pkg, binary string, m *mutant) error {
	if b.built[binary] {
		return nil
	}
	b.built[binary] = true
	args := []string{"test", "-c", "-ldflags=-s -w", "-o", binary}
	if m.file != "" {
		file, overlay := filepath.Join(b.temporary, "mutated.go"), filepath.Join(b.temporary, "overlay.json")
		text, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: file}})
		if err := cmp.Or(err, os.WriteFile(file, []byte(m.content), 0o600), os.WriteFile(overlay, text, 0o600)); err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = b.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// execute runs a test binary and returns its failed tests. If the binary exceeds its limit or needs
// far too much memory, it returns the test begun last.
func (b *bench) execute(binary string, test []string, seed string) (failed string, took time.Duration) {
	limits := fmt.Sprintf(`ulimit -t %d; ulimit -v 6000000; exec "$@"`, int(b.limit.Seconds()))
	args := []string{"-c", limits, "sh", binary, "-test.v", "-test.timeout=20m", "-test.failfast"}
	for _, arg := range test[1:] {
		args = append(args, strings.ReplaceAll(arg, "{seed}", seed))
	}
	cmd := exec.Command("sh", args...)
	cmd.Dir = filepath.Join(b.root, test[0])
	out, err := cmd.CombinedOutput()
	took = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err == nil {
		return "", took
	}

	var tests []string
	last := "?"
	for line := range bytes.Lines(out) {
		switch fields := strings.Fields(string(line)); {
		case bytes.HasPrefix(line, []byte("=== RUN")):
			last, _, _ = strings.Cut(fields[2], "/")
		case bytes.HasPrefix(line, []byte("--- FAIL:")):
			tests = append(tests, fields[2])
		}
	}
	if len(tests) == 0 {
		tests = []string{last + " (hangs or crashes)"}
	}
	return strings.Join(tests, " "), took
}
