// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// results maps the names of tests that have no subtests to PASS, FAIL or SKIP.
type results map[string]string

var ended = regexp.MustCompile(`^[\s\x16]*--- (PASS|FAIL|SKIP): (\S+) \(`)

// began matches the line that reports the start of a test. A test without a later result counts as
// failed, because the process ended before the test.
var began = regexp.MustCompile(`^[\s\x16]*=== RUN\s+(\S+)`)

func readResults(out io.Reader) results {
	found := results{}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if m := began.FindStringSubmatch(lines.Text()); m != nil {
			found[m[1]] = "FAIL"
		} else if m := ended.FindStringSubmatch(lines.Text()); m != nil {
			found[m[2]] = m[1]
		}
	}

	for name := range found {
		for parent := name; ; {
			i := strings.LastIndex(parent, "/")
			if i < 0 {
				break
			}
			parent = parent[:i]
			delete(found, parent)
		}
	}

	return found
}

//go:embed known.txt
var knownFailures string

// known lists the tests that do not apply to Berth, by patterns, with the reasons.
type known []*exception

type exception struct {
	pattern *regexp.Regexp
	reason  string
	apart   bool // Berth does not run in these tests, so they count neither as passes nor as failures
	applied bool
}

// readKnown reads the format of known.txt. A line consists of a pattern for PACKAGE TEST, a tab and
// a reason. A * before the pattern means that Berth does not run in these tests.
func readKnown(text string) (all known, err error) {
	for n, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, ok := strings.Cut(line, "\t")
		pattern, apart := strings.CutPrefix(pattern, "*")
		compiled, err := regexp.Compile("^(" + pattern + ")$")
		if !ok || err != nil {
			return nil, fmt.Errorf("known.txt:%d: want a pattern, a tab and a reason: %w", n+1, err)
		}
		all = append(all, &exception{pattern: compiled, reason: strings.TrimSpace(reason), apart: apart})
	}
	return all, nil
}

// exceptionFor returns the known exception for a test, or nil.
func (k known) exceptionFor(name string) *exception {
	for _, one := range k {
		if one.pattern.MatchString(name) {
			return one
		}
	}
	return nil
}

// unneededPatterns lists the patterns for these packages that applied to no test.
func (k known) unneededPatterns(packages []string) (patterns []string) {
	for _, one := range k {
		name := strings.TrimSuffix(strings.TrimPrefix(one.pattern.String(), "^("), ")$")
		of, _, _ := strings.Cut(name, " ")
		if !one.applied && slices.Contains(packages, of) {
			patterns = append(patterns, name)
		}
	}
	return patterns
}

// row holds the results of a package.
type row struct {
	name             string
	berth, upstream  results
	explained, wrong []string
	apart            int
}

// judgeFailures separates the known failures from the others, and removes the results of tests in
// which Berth does not run.
func (r *row) judgeFailures(k known) {
	for _, test := range slices.Sorted(maps.Keys(r.berth)) {
		one := k.exceptionFor(r.name + " " + test)
		switch {
		case one != nil && one.apart:
			one.applied = true
			delete(r.berth, test)
			r.apart++
		case r.berth[test] != "FAIL":
		case one != nil:
			one.applied = true
			r.explained = append(r.explained, test)
		default:
			r.wrong = append(r.wrong, test)
		}
	}
}

func (r results) countResults(how string) (n int) {
	for _, is := range r {
		if is == how {
			n++
		}
	}
	return n
}

func (r *row) progressText() string {
	line := fmt.Sprintf("%s: %d pass, %d listed, %d apart, %d skipped", r.name, r.berth.countResults("PASS"),
		len(r.explained), r.apart, r.berth.countResults("SKIP"))
	for _, test := range r.wrong {
		line += "\n    FAIL " + test
	}
	return line
}

// printTable prints the rows and their sum. It returns an error if tests fail that are not listed.
func printTable(out io.Writer, rows []row, both bool) error {
	fmt.Fprintf(out, "| package | tests | Berth passes | listed | apart |%s\n| --- | --- | --- | --- | --- |%s\n",
		textIf(both, " upstream passes |"), textIf(both, " --- |"))
	var tests, passed, listed, apart, theirs, wrong int
	for _, r := range rows {
		n := len(r.berth) - r.berth.countResults("SKIP")
		fmt.Fprintf(out, "| %s | %d | %d | %d | %d |%s\n", r.name, n, r.berth.countResults("PASS"), len(r.explained),
			r.apart, textIf(both, fmt.Sprintf(" %d |", r.upstream.countResults("PASS"))))
		tests, passed, listed, apart, wrong = tests+n, passed+r.berth.countResults("PASS"), listed+len(r.explained),
			apart+r.apart, wrong+len(r.wrong)
		theirs += r.upstream.countResults("PASS")
	}
	fmt.Fprintf(out, "| **all** | %d | %d | %d | %d |%s\n", tests, passed, listed, apart, textIf(both, fmt.Sprintf(" %d |", theirs)))
	if wrong > 0 {
		return errors.New(fmt.Sprint(wrong, " tests fail that are not listed in known.txt"))
	}
	return nil
}

func textIf(yes bool, text string) string {
	if yes {
		return text
	}
	return ""
}
